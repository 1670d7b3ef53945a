"""What examples with a real small model share: its chat template with tools, and its way from untrained to trained."""
