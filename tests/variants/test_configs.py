"""What every variant's config accepts, refuses and says."""

import dataclasses
import json
import math

import pytest

from focus_core.errors import InvalidInput
from focus_core.variants import VARIANTS, config_fields, make
from tests.variants.cases import ALL

FIELDS = [(name, f.name) for name in sorted(VARIANTS) for f in dataclasses.fields(VARIANTS[name])]


def default(name: str, field: str):
    return config_fields(VARIANTS[name])[field]["default"]


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_it_introduces_itself(name):
    cls = VARIANTS[name]
    assert cls.name == name
    assert cls.summary.endswith(".")
    for field, about in config_fields(cls).items():
        assert about["help"], field
    json.dumps(config_fields(cls))


@pytest.mark.parametrize("label", ALL)
def test_a_config_goes_to_plain_values_and_back(label):
    variant = ALL[label]
    plain = json.loads(json.dumps(variant.to_dict()))
    assert make(variant.name, plain) == variant
    assert make(variant.name, {k: str(v) for k, v in plain.items()}) == variant
    assert hash(variant) == hash(make(variant.name, plain))
    with pytest.raises(dataclasses.FrozenInstanceError):
        variant.window = 3


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_an_unknown_setting_is_refused(name):
    known = ", ".join(config_fields(VARIANTS[name])) or "It has no settings"
    with pytest.raises(InvalidInput, match="'colour'") as refusal:
        make(name, {"colour": 1})
    assert known in str(refusal.value)


def test_an_unknown_variant_is_refused():
    with pytest.raises(InvalidInput, match="no variant 'locus'") as refusal:
        make("locus")
    assert all(name in str(refusal.value) for name in VARIANTS)


@pytest.mark.parametrize("name, field", FIELDS)
def test_another_type_is_refused(name, field):
    value = default(name, field)
    wrong = [None, [], {}, object()]
    wrong += [True] if not isinstance(value, bool) else [1]
    wrong += [3] if isinstance(value, str) else ["many"]
    wrong += [1.5] if isinstance(value, int) else []
    for bad in wrong:
        with pytest.raises(InvalidInput, match=rf"{name}\.{field}"):
            make(name, {field: bad})


@pytest.mark.parametrize("name, field", FIELDS)
def test_a_value_out_of_range_is_refused(name, field):
    about = config_fields(VARIANTS[name])[field]
    value = about["default"]
    bad = ["nothing of the kind"] if isinstance(value, str) and about["choices"] else []
    if about["minimum"] is not None:
        bad.append(about["minimum"] - 1)
        assert value >= about["minimum"]
    if about["maximum"] is not None:
        bad.append(about["maximum"] + 1)
        assert value <= about["maximum"]
    if isinstance(value, float):
        bad += [math.nan, "nan"]
    # A number without any bound would let a sign or a zero through to the kernels.
    assert bad or isinstance(value, bool)
    for wrong in bad:
        with pytest.raises(InvalidInput, match=rf"{name}\.{field} is .*It can be"):
            make(name, {field: wrong})
    for edge in ("minimum", "maximum"):
        if about[edge] is not None:
            # Few groups are enough for one membership alone, many memberships need many groups.
            room = {"groups": 64, "query_topk": 1, "key_topk": 1} if _grouped(name) else {}
            room |= {"stride": 4} if "stride" in config_fields(VARIANTS[name]) else {}
            make(name, room | {field: about[edge]})


def _grouped(name: str) -> bool:
    return "query_topk" in config_fields(VARIANTS[name])


@pytest.mark.parametrize("name", [n for n in sorted(VARIANTS) if _grouped(n)])
@pytest.mark.parametrize("field", ["query_topk", "key_topk"])
def test_a_token_cannot_join_more_groups_than_there_are(name, field):
    with pytest.raises(InvalidInput, match=rf"{field} is 5, and there are 4 groups"):
        make(name, {"groups": 4, field: 5})
    make(name, {"groups": 4, field: 4})


def test_what_only_bends_a_variant_takes_no_ones_place():
    known = dict(VARIANTS)

    class Bent(VARIANTS["window"]):
        pass

    assert Bent.name == "window"
    assert known == VARIANTS
