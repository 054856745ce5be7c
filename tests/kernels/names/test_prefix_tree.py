"""What prompts begin with alike is one stretch, whether the tree is compiled or in dicts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from baton.core.block_hash import BlockNames, block_hashes
from baton.kernels.cpu.library import library
from baton.kernels.names.name_set import NameSet, ReferenceSet
from baton.kernels.names.name_set_cpu import CompiledSet
from baton.kernels.names.prefix_tree import PrefixTree, ReferenceTree
from baton.kernels.names.prefix_tree_cpu import CompiledTree

found = library()
TREES: Sequence[Callable[[], PrefixTree]] = (
    (ReferenceTree,) if found is None else (ReferenceTree, partial(CompiledTree, found))
)
SETS: Sequence[Callable[[], NameSet]] = (
    (ReferenceSet,) if found is None else (ReferenceSet, partial(CompiledSet, found))
)


def chain(text: str) -> BlockNames:
    return BlockNames.of(block_hashes(bytes(16), list(text.encode()), 1))


@pytest.mark.parametrize("make", TREES)
def test_a_thousand_prompts_that_begin_alike_are_passed_in_one_stretch_and_join_again(
    make: Callable[[], PrefixTree],
) -> None:
    tree, alike = make(), "what all of them begin with"
    tree.add(1, chain(alike))

    others = [(n % 3, chain(f"{alike}{n}")) for n in range(1000)]
    for other in others:
        tree.add(*other)
    assert tree.num_passed(chain(f"{alike}!")) == 1
    assert list(tree.depths(chain(f"{alike}!"), 3)) == [len(alike)] * 3 + [0]

    tree.add(1, chain(alike[:9]))
    for other in (*others, (1, chain(alike[:9]))):
        tree.remove(*other)
    assert tree.num_passed(chain(alike)) == 1
    tree.remove(1, chain(alike))
    assert not tree


@pytest.mark.skipif(found is None, reason="nothing is compiled here")
def test_both_trees_and_sets_know_the_same_after_hundreds_of_prompts_came_and_went() -> None:
    draw = random.Random(1)
    prompts = [chain("".join(draw.choices("ab", k=draw.randrange(30)))) for _ in range(60)]
    trees, sets = [make() for make in TREES], [make() for make in SETS]
    there: list[tuple[int, BlockNames]] = []

    for _ in range(600):
        asked = draw.choice(prompts)
        if there and draw.random() < 0.45:
            gone = there.pop(draw.randrange(len(there)))
            for tree in trees:
                tree.remove(*gone)
            for tails in sets:
                tails.remove(gone[1][-1] if gone[1] else bytes(16))
        else:
            there.append((draw.randrange(70), asked))
            for tree in trees:
                tree.add(*there[-1])
            for tails in sets:
                tails.add(asked[-1] if asked else bytes(16))
        assert trees[0].depths(asked, 70) == trees[1].depths(asked, 70)
        assert trees[0].num_passed(asked) == trees[1].num_passed(asked)
        start = draw.randrange(len(asked) + 1)
        assert sets[0].last(asked, start) == sets[1].last(asked, start)
