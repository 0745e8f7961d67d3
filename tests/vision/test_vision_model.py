"""The model: softmax, XAttention, transformers' ViT, training that goes on, what one image does, files."""

import dataclasses
import gzip

import numpy as np
import pytest
import torch

from focus_core.errors import Cancelled, InvalidInput, NotAvailable, Unsupported
from focus_core.vision import data
from focus_core.vision.augment import augment
from focus_core.vision.config import AttentionConfig, ViTConfig
from focus_core.vision.look import curves, look, rollout
from focus_core.vision.models import load_vision_model, save_vision_model, vision_models
from focus_core.vision.records import maps_record, step_cost, summarise, xattention_sweep
from focus_core.vision.retrofit import vision_retrofit
from focus_core.vision.training import Images, Recipe, train
from focus_core.vision.vit import ViT
from focus_core.vision.xattention import estimate, keep, kept_pairs

SHAPE = ViTConfig(8, patch=2, width=12, depth=2, heads=3)
KARAT = SHAPE.with_attention(kind="karat", grid=2, rank=2)


def _images(n=40):
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (n, 8, 8), dtype=np.uint8)
    return Images(pixels, np.arange(n) % 10, pixels[:10], np.arange(10))


def _watched(model, images, **how):
    maps = []
    logits = model(images, watch=lambda layer, w, s, v: maps.append(w), **how)
    return logits, maps


def test_softmax_is_scaled_dot_product_attention():
    torch.manual_seed(0)
    model, images = ViT(SHAPE), torch.randn(3, 1, 8, 8)
    logits, maps = _watched(model, images)
    torch.testing.assert_close(logits, model(images))
    torch.testing.assert_close(torch.stack(maps).sum(-1), torch.ones(2, 3, 3, 17))


def test_xattention_with_a_threshold_of_one_is_dense_and_warm_up_layers_stay_dense():
    torch.manual_seed(0)
    model, images = ViT(SHAPE), torch.randn(2, 1, 8, 8)
    dense = model(images)
    settings = AttentionConfig("xattention", stride=2, block=4, threshold=1.0)
    torch.testing.assert_close(model(images, attention=settings), dense)
    sparse, counts = dataclasses.replace(settings, threshold=0.3, warm_up=1), []
    logits = model(images, attention=sparse, counts=counts)
    assert counts[0] == 1.0 > counts[1]
    assert not torch.allclose(logits, dense)
    torch.testing.assert_close(_watched(model, images, attention=sparse)[0], logits)


def test_xattentions_estimate_is_the_sum_along_antidiagonals():
    torch.manual_seed(0)
    n, stride, block, scale = 10, 2, 4, 0.5
    q, k = torch.randn(2, 1, 1, n, 3, dtype=torch.float64)
    got = estimate(q, k, stride, block, scale)[0, 0]
    tiles = torch.full((6, 6), -torch.inf, dtype=torch.float64)
    for i in range(5):
        for j in range(5):
            pairs = [(i * 2 + a, j * 2 + 1 - a) for a in range(2)]
            tiles[i, j] = sum(float(q[0, 0, x] @ k[0, 0, y]) for x, y in pairs) * scale / stride
    rows = tiles[:5].softmax(-1)
    wanted = torch.stack(
        [torch.stack([rows[r, c : c + 2].sum(-1).mean() for c in (0, 2, 4)]) for r in ([0, 1], [2, 3], [4])]
    )
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(got.sum(-1), torch.ones(3, dtype=torch.float64))
    assert keep(torch.tensor([[0.5, 0.3, 0.2]]), 0.6).tolist() == [[True, True, False]]
    pairs = kept_pairs(q, k, AttentionConfig("xattention", stride=2, block=4, threshold=0.1), scale)
    blocks = pairs[0, 0, ::4, ::4]
    assert blocks.sum(-1).tolist() == [1, 1, 1]
    assert blocks.int().argmax(-1).tolist() == wanted.argmax(-1).tolist()
    assert torch.equal(pairs[0, 0], blocks.repeat_interleave(4, 0).repeat_interleave(4, 1)[:n, :n])


def _as_transformers(model):
    from transformers import ViTConfig as Theirs
    from transformers import ViTForImageClassification

    c = model.config
    config = Theirs(
        image_size=c.image, patch_size=c.patch, num_channels=1, hidden_size=c.width, num_hidden_layers=c.depth,
        num_attention_heads=c.heads, intermediate_size=c.width * c.mlp_ratio, layer_norm_eps=1e-6, num_labels=10,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    theirs, ours = ViTForImageClassification(config).eval(), model.state_dict()
    found = dict(theirs.named_parameters())

    def put(end, value):
        (name,) = [n for n in found if n.endswith(end)]
        found[name].data.copy_(value)

    put("cls_token", ours["cls"])
    put("position_embeddings", ours["positions"])
    for part in ("weight", "bias"):
        put(f"projection.{part}", ours[f"embed.{part}"])
        put(f"vit.layernorm.{part}", ours[f"norm.{part}"])
        put(f"classifier.{part}", ours[f"head.{part}"])
        for i in range(c.depth):
            for name, value in zip("qkv", ours[f"blocks.{i}.qkv.{part}"].chunk(3), strict=True):
                put(f"layers.{i}.attention.{name}_proj.{part}", value)
            put(f"layers.{i}.attention.o_proj.{part}", ours[f"blocks.{i}.out.{part}"])
            put(f"layers.{i}.layernorm_before.{part}", ours[f"blocks.{i}.norm1.{part}"])
            put(f"layers.{i}.layernorm_after.{part}", ours[f"blocks.{i}.norm2.{part}"])
            put(f"layers.{i}.mlp.fc1.{part}", ours[f"blocks.{i}.up.{part}"])
            put(f"layers.{i}.mlp.fc2.{part}", ours[f"blocks.{i}.down.{part}"])
    return theirs


def test_transformers_vit_with_a_variant_is_ours_and_is_restored():
    torch.manual_seed(0)
    ours, images = ViT(KARAT).eval(), torch.randn(2, 1, 8, 8)
    theirs = _as_transformers(ours)
    name = theirs.config._attn_implementation
    with torch.no_grad():
        before = theirs(images).logits
        operators = torch.nn.ModuleList(ours.operator(i) for i in range(2))
        with vision_retrofit(theirs, KARAT.attention, operators):
            torch.testing.assert_close(theirs(images).logits, ours(images))
            with pytest.raises(InvalidInput, match="already"), vision_retrofit(theirs, KARAT.attention):
                pass
            with pytest.raises(Unsupported, match="17 tokens"):
                theirs(torch.randn(1, 1, 12, 12), interpolate_pos_encoding=True)
        assert theirs.config._attn_implementation == name
        assert torch.equal(theirs(images).logits, before)
        with vision_retrofit(theirs, AttentionConfig("xattention", stride=2, block=4, threshold=0.2)) as active:
            theirs(images)
        assert set(active.kept) == {0, 1}
        assert max(active.kept.values()) < 1
        with pytest.raises(InvalidInput, match="operators"), vision_retrofit(theirs, KARAT.attention, operators[:1]):
            pass
    with pytest.raises(Unsupported, match="Linear"), vision_retrofit(torch.nn.Linear(2, 2), KARAT.attention):
        pass


def test_images_that_are_not_square_have_operators_of_their_tokens():
    from transformers import ViTConfig as Theirs
    from transformers import ViTModel

    config = Theirs(
        image_size=(8, 4), patch_size=(2, 2), num_channels=1, hidden_size=12, num_hidden_layers=1,
        num_attention_heads=3, intermediate_size=12,
    )  # fmt: skip
    model = ViTModel(config, add_pooling_layer=False).eval()
    with torch.no_grad(), vision_retrofit(model, KARAT.attention) as active:
        assert model(torch.randn(1, 1, 8, 4)).last_hidden_state.shape == (1, 9, 12)
    assert active.operators[0].tokens == 9


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    recipe = Recipe(epochs=3, batch=10, validation=10, warmup=1)
    whole, first = train(KARAT, _images(), recipe, tmp_path / "a")
    asked = iter((False, True))
    with pytest.raises(Cancelled):
        train(KARAT, _images(), recipe, tmp_path / "b", cancel=lambda: next(asked))
    with pytest.raises(InvalidInput, match="another run"):
        train(KARAT, _images(), dataclasses.replace(recipe, seed=1), tmp_path / "b")
    resumed, second = train(KARAT, _images(), recipe, tmp_path / "b")
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    assert first["loss"] == second["loss"]
    assert first["validation"] == second["validation"]
    assert len(first["loss"]["loss"]) == 9
    assert (tmp_path / "b").exists(), "until the model is kept, a killed program must not lose it"
    with pytest.raises(InvalidInput, match="not trained"):
        train(SHAPE.with_attention(kind="xattention"), _images(), recipe, tmp_path / "c")


def test_augmenting_moves_and_mirrors_whole_images():
    images = torch.arange(64.0).view(1, 1, 8, 8).repeat(30, 1, 1, 1)
    still = augment(images, Recipe(flip=False, shift=0), SHAPE, torch.Generator().manual_seed(0))
    assert torch.equal(still, images)
    mirrored = augment(images, Recipe(flip=True, shift=0), SHAPE, torch.Generator().manual_seed(0))
    kinds = {bool(torch.equal(m, images[0])) for m in mirrored}
    assert kinds == {True, False}
    assert all(torch.equal(m, images[0]) or torch.equal(m, images[0].flip(-1)) for m in mirrored)
    moved = augment(images, Recipe(flip=False, shift=1), SHAPE, torch.Generator().manual_seed(0))
    assert len({tuple(m.flatten().tolist()) for m in moved}) > 4


def test_a_look_tells_rows_signs_and_mass():
    torch.manual_seed(0)
    image = data.normalise(_images().train[:1] // 200 * 200)
    seen = look(ViT(KARAT), image)
    assert seen.maps.shape == (2, 3, 17, 17)
    np.testing.assert_allclose(seen.row_sums, seen.maps.sum(-1))
    np.testing.assert_allclose(seen.negative_share, (seen.maps < 0).mean((2, 3)))
    assert 0 < seen.negative_share.max() < 1
    weights = np.abs(seen.maps[:, :, 0, 1:])
    object_pixels = (image[0, 0].numpy() > data.BLACK + 1e-3).reshape(4, 2, 4, 2).mean((1, 3)).ravel()
    np.testing.assert_allclose(seen.object_mass, (weights * object_pixels).sum(-1) / weights.sum(-1), rtol=1e-5)
    assert seen.uniform_mass == pytest.approx(object_pixels.mean())
    with pytest.raises(InvalidInput, match="2 images"):
        look(ViT(KARAT), image.repeat(2, 1, 1, 1))
    same = torch.full((1, 3, 2, 5, 5), 0.2)
    torch.testing.assert_close(rollout(same), torch.full((1, 4), (1 - 0.5**3) / 5))


def test_the_curves_are_the_operators_functions():
    model = ViT(KARAT)
    x, found = curves(model, 1, 2, points=5, edges=[(1, 3)])
    operator = model.operator(1)
    c = operator.coefficients[2, 1, :, 3].detach().numpy()
    wanted = c[0] * np.cos(x) + c[1] * np.cos(2 * x) + c[2] * np.sin(x) + c[3] * np.sin(2 * x)
    np.testing.assert_allclose(found[1, 3], wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(InvalidInput, match="no learned functions"):
        curves(ViT(SHAPE), 0, 0)
    with pytest.raises(InvalidInput, match="edge"):
        curves(model, 0, 0, edges=[(2, 0)])


def test_models_are_saved_listed_and_loaded(tmp_path):
    model = ViT(KARAT)
    save_vision_model(model, tmp_path / "one", title="One", data="digits", seed=4, accuracy=0.5, epochs=2)
    (info,) = vision_models(tmp_path)
    assert (info.name, info.seed, info.accuracy, info.record) == ("one", 4, 0.5, {"epochs": 2})
    assert info.config == KARAT
    loaded, images = load_vision_model("one", tmp_path), torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(loaded(images), model(images), rtol=0, atol=0.02)
    with pytest.raises(NotAvailable, match="two"):
        load_vision_model("two", tmp_path)
    weights, described = tmp_path / "one" / "model.safetensors", tmp_path / "one" / "config.json"
    weights.write_bytes(weights.read_bytes()[:500])
    with pytest.raises(InvalidInput, match="does not hold the weights"):
        load_vision_model("one", tmp_path)
    for damaged in (described.read_text()[:90], "{}", "[]"):
        described.write_text(damaged)
        with pytest.raises(InvalidInput, match="does not describe a vision model"):
            vision_models(tmp_path)


def test_records_of_a_model():
    images = torch.tensor(_images().train)
    found = maps_record(ViT(KARAT), images, batch=16)
    assert found["images"] == 40
    assert np.mean(found["by_head"]) == pytest.approx(found["object_mass"]["mean"], rel=1e-4)
    rows = xattention_sweep(ViT(SHAPE), images, torch.arange(40) % 10, (0.2, 1.0), (0, 1), 2, 4)
    kept = {(r["threshold"], r["warm_up"]): r["kept_pairs"] for r in rows}
    assert kept[0.2, 0] < kept[0.2, 1] < kept[1.0, 0] == 1.0
    cost = step_cost(KARAT, "cpu", 2, steps=2, warm=1)
    assert cost["step_ms"]["median"] > 0
    one = {"size": "t", "parameters": 1, "maps": found, "loss_spread": {"roughness": 0.0}}
    runs = [one | {"arm": "softmax", "accuracy": a} for a in (0.5, 0.7)] + [one | {"arm": "G3B", "accuracy": 0.8}]
    table = {row["arm"]: row for row in summarise(runs)}
    assert table["G3B"]["gain"] == pytest.approx(0.2)
    assert table["softmax"]["accuracy_sd"] == pytest.approx(0.1 * 2**0.5)


def test_images_from_files_and_people(tmp_path):
    with pytest.raises(NotAvailable, match="apt-get install dataset-fashion-mnist"):
        data.fashion_mnist("test", tmp_path)
    pixels = np.arange(2 * 784, dtype=np.uint32).astype(np.uint8).reshape(2, 28, 28)
    head = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in pixels.shape)
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + pixels.tobytes()))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 3])))
    images, labels = data.fashion_mnist("test", tmp_path)
    assert np.array_equal(images, pixels)
    assert labels.tolist() == [7, 3]
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 3])))
    with pytest.raises(InvalidInput, match="cut short"):
        data.fashion_mnist("test", tmp_path)
    shipped, labels, names = data.shipped_images()
    assert shipped.dtype == np.uint8
    assert np.bincount(labels).tolist() == [40] * len(names)
    white = np.full((60, 40, 3), 255, np.uint8)
    white[20:40, 10:30] = 0
    made = data.prepare_image(white)
    assert made.shape == (1, 1, 28, 28)
    assert made[0, 0, 0, 0] == pytest.approx(data.BLACK)
    assert made[0, 0, 14, 14] > 1
    with pytest.raises(InvalidInput, match="no image"):
        data.prepare_image(np.zeros(3))
