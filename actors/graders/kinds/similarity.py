"""Text similarity metrics from 0 (nothing in common) to 1 (the metric's maximum), computed by established libraries.

If one of the texts has no words, the similarity is 1 if both texts are equal, else 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from agent_rft.spec.graders import Similarity

SimilarityMetric = Callable[[str, str], float]

MAX_CHARS = 50_000
"""Longer texts are truncated to this length. Some metrics take time proportional to the product of both lengths; at
this length the slowest takes 0.2 s."""
MAX_STEMMED_CHARS = 64
"""Longer words are not stemmed, because the stemmer recurses once per letter."""

_WORD = re.compile(r"[^\W_]+")


def load_similarity_metric(name: Similarity) -> SimilarityMetric:
    """Return the metric as a function (text, reference) -> similarity from 0 to 1.

    This imports the metric's library, which may take half a second.
    """
    if name == "cosine":
        raise ValueError("the metric cosine is computed from embeddings, not from text")
    compute = _METRICS[name]()

    def similarity(text: str, reference: str) -> float:
        text, reference = text[:MAX_CHARS].strip(), reference[:MAX_CHARS].strip()
        if not (_WORD.search(text) and _WORD.search(reference)):
            return float(text == reference)
        return min(1.0, max(0.0, compute(text, reference)))

    return similarity


def split_words(text: str) -> list[str]:
    """Return the words (runs of letters and digits) in lower case. rouge-score's own tokenizer supports only ASCII."""
    return _WORD.findall(text.lower())


def _fuzzy() -> SimilarityMetric:
    from rapidfuzz import fuzz

    return lambda text, reference: fuzz.ratio(text, reference) / 100


def _bleu() -> SimilarityMetric:
    from sacrebleu.metrics import BLEU

    bleu = BLEU(effective_order=True)  # recommended for single sentences; else three words score almost 0
    return lambda text, reference: float(bleu.sentence_score(text, [reference]).score) / 100


def _gleu() -> SimilarityMetric:
    from nltk.tokenize import wordpunct_tokenize
    from nltk.translate.gleu_score import sentence_gleu

    return lambda text, reference: float(sentence_gleu([wordpunct_tokenize(reference)], wordpunct_tokenize(text)))


def _meteor() -> SimilarityMetric:
    from nltk.stem.porter import PorterStemmer
    from nltk.tokenize import wordpunct_tokenize
    from nltk.translate.meteor_score import single_meteor_score

    porter = PorterStemmer()

    class Stemmer:
        def stem(self, word: str) -> str:
            return str(porter.stem(word)) if len(word) <= MAX_STEMMED_CHARS else word

    class NoSynonyms:
        """Replacement for WordNet, which would have to be downloaded; has no synonyms."""

        def synsets(self, word: str) -> Sequence[Any]:
            return ()

    stemmer, synonyms = Stemmer(), NoSynonyms()
    return lambda text, reference: float(
        single_meteor_score(wordpunct_tokenize(reference), wordpunct_tokenize(text), stemmer=stemmer, wordnet=synonyms)
    )


class _WordTokenizer:
    """Tokenizer for rouge-score that uses `split_words`."""

    def tokenize(self, text: str) -> list[str]:
        return split_words(text)


def _rouge_n(n: int) -> SimilarityMetric:
    from rouge_score.rouge_scorer import RougeScorer

    name = f"rouge{n}"
    scorer = RougeScorer([name], tokenizer=_WordTokenizer())
    return lambda text, reference: float(scorer.score(reference, text)[name].fmeasure)


def _rouge_l() -> SimilarityMetric:
    """Return rouge-score's ROUGE-L with rapidfuzz's longest common subsequence, which is a thousand times faster."""
    from rapidfuzz.distance import LCSseq
    from rouge_score.scoring import fmeasure

    def rouge_l(text: str, reference: str) -> float:
        ours, theirs = split_words(text), split_words(reference)
        common = LCSseq.similarity(ours, theirs)
        return float(fmeasure(common / len(ours), common / len(theirs)))

    return rouge_l


_METRICS: dict[str, Callable[[], SimilarityMetric]] = {
    "fuzzy_match": _fuzzy,
    "bleu": _bleu,
    "gleu": _gleu,
    "meteor": _meteor,
    **{f"rouge_{n}": partial(_rouge_n, n) for n in range(1, 6)},
    "rouge_l": _rouge_l,
}
