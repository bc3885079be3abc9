# SPDX-License-Identifier: Apache-2.0
"""Tasks that only the papers' tables train."""

# module and class of each task, by its name
PLACES = {
    "memorization": "edgernn.training.papers.tasks.memorization:Memorization",
    "binary-addition": "edgernn.training.papers.tasks.binary_addition:BinaryAddition",
    "twitter": "edgernn.training.papers.tasks.twitter:Twitter",
    "yahoo": "edgernn.training.papers.tasks.yahoo:Yahoo",
    "brits": "edgernn.training.papers.tasks.brits:Mortality",
    "draw": "edgernn.training.papers.tasks.draw:DrawImages",
    "l2l": "edgernn.training.papers.tasks.l2l:LearningToLearn",
    "sentence-vae": "edgernn.training.papers.tasks.sentence_vae:SentenceCodes",
    "ptb": "edgernn.training.papers.tasks.ptb:NextWord",
}
