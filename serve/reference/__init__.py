"""What the manual and the commands `schema` and `explain` tell about settings, in one form for all of them."""
