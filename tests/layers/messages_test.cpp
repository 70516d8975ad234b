// What a newcomer reads when a layer, a file or a table does not fit: the name of what was called, what it got, what to
// do.
#include "support/catch.h"
#include "support/temp_folder.h"

#include <sluice/autograd/anomaly.h>
#include <sluice/autograd/engine.h>
#include <sluice/autograd/function.h>
#include <sluice/core/text/file.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/attention/multi_head_attention.h>
#include <sluice/layers/attention/transformer_block.h>
#include <sluice/layers/data/csv.h>
#include <sluice/layers/data/idx.h>
#include <sluice/layers/data/npy.h>
#include <sluice/layers/data/text.h>
#include <sluice/layers/gau/flash_model.h>
#include <sluice/layers/gau/gau.h>
#include <sluice/layers/linear_attention/delta_net.h>
#include <sluice/layers/linear_attention/gla.h>
#include <sluice/layers/linear_attention/linear_attention.h>
#include <sluice/layers/linear_attention/retention.h>
#include <sluice/layers/models/load_model_files.h>
#include <sluice/layers/nn/generate.h>
#include <sluice/layers/nn/linear.h>
#include <sluice/layers/nn/mlp.h>
#include <sluice/layers/nn/moe.h>
#include <sluice/layers/nn/pass.h>
#include <sluice/layers/port/pytorch.h>
#include <sluice/layers/port/tokenizer.h>
#include <sluice/layers/train/data_parallel.h>
#include <sluice/layers/train/optim.h>
#include <sluice/layers/train/training.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/rows/norm.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <cstddef>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <string>

using namespace sluice;
using namespace sluice::testing;

TEST_CASE("messages: inputs that do not fit a layer", "[messages]") {
  Rng rng(1);
  const Mlp mlp({.dim = 16}, rng);
  const Glu glu({.dim = 16}, rng);
  const Gau gau({.dim = 16, .key_dim = 8}, rng);
  CHECK_THROWS_WITH(mlp(ones({2, 3})), Contains("mlp: got x=[2,3]; need [..., 16]"));
  CHECK_THROWS_WITH(glu(ones({})), Contains("glu: got x=[]; need [..., 16]"));
  CHECK_THROWS_WITH(mlp(Tensor()), "mlp: got x=undefined; need [..., 16]");
  CHECK_THROWS_WITH(gau(Tensor()), "gau: got x=undefined; need [batch, n, 16]");
  CHECK_THROWS_WITH(gau(ones({1, 5, 16}), {.key_mask = ones({1, 5})}), Contains("gau: key_mask must be bool"));
  CHECK_THROWS_WITH(gau(ones({1, 5, 16}, {f64})), Contains("got x=f64[1,5,16]") && Contains("to(model, dtype)"));
  CHECK_THROWS_WITH(Linear()(ones({2, 3})), Contains("linear: weight is undefined"));
  CHECK_THROWS_WITH(sample_tokens(full({1, 5}, std::nan("")), {}, rng),
                    Contains("sample_tokens: row 0 of the logits has a NaN"));
  CHECK_THROWS_WITH(generate([](const Tensor& t) { return t; }, Tensor(), {}, rng),
                    Contains("generate: prompt is undefined"));
  Stream stream;
  CHECK_THROWS_WITH(step(gau, Tensor(), stream), StartsWith("step: x is undefined"));
  CHECK_THROWS_WITH(step(gau, ones({4}), stream),
                    "step: got x=[4]; need the next tokens of each sequence, [batch, m, …]");
  CHECK_THROWS_WITH(of_sequences(stream, Tensor()), StartsWith("of_sequences: index is undefined"));
  CHECK_THROWS_WITH(rows_of(Tensor(), Communicator()), StartsWith("rows_of: batch is undefined"));
  CHECK_THROWS_WITH(sample_tokens(ones({1, 5}), {.temperature = -1}, rng), Contains("sample_tokens: temperature"));
}

/// What a default-constructed layer says that lies where other data lay before.
template <class M> std::string said_unmade(const Tensor& x) {
  alignas(M) std::byte place[sizeof(M)];
  volatile std::byte* old = place;
  for (std::size_t i = 0; i < sizeof(M); ++i) old[i] = std::byte{0x11};
  const std::unique_ptr<M, void (*)(M*)> layer(new (place) M, [](M* m) { m->~M(); });
  try {
    (*layer)(x);
  } catch (const Error& e) { return e.what(); }
  return "nothing";
}

TEST_CASE("messages: a layer that was not made says so, and not a size that lay in memory", "[messages]") {
  const Tensor x = ones({1, 2, 4});
  const std::string unmade = ": this layer is default-constructed and has no weights; make it from its options";
  CHECK(said_unmade<Gau>(x) == "gau" + unmade);
  CHECK(said_unmade<CrossGau>(x) == "cross_gau" + unmade);
  CHECK(said_unmade<Flash>(x) == "flash" + unmade);
  CHECK(said_unmade<FlashModel>(x) == "flash_model" + unmade);
  CHECK(said_unmade<MultiHeadAttention>(x) == "multi_head_attention" + unmade);
  CHECK(said_unmade<GatedDeltaNet>(x) == "gated_delta_net" + unmade);
  CHECK(said_unmade<LinearAttention>(x) == "linear_attention" + unmade);
  CHECK(said_unmade<Retention>(x) == "retention" + unmade);
  CHECK(said_unmade<Gla>(x) == "gla" + unmade);
  CHECK(said_unmade<Mlp>(x) == "mlp" + unmade);
  CHECK(said_unmade<Glu>(x) == "glu" + unmade);
  CHECK(said_unmade<Moe>(ones({2, 0})) == "moe" + unmade);
  CHECK(said_unmade<TransformerBlock<Gau, Mlp>>(x) == "transformer_block" + unmade);
}

TEST_CASE("messages: an error within a vjp names the op of the vjp", "[messages]") {
  Tensor x = ones({2, 3}).requires_grad_();
  const auto op = [&](const CustomVjp& vjp) {
    return sum(custom_op(
        "doubled", {x}, [](const Tensors& in) { return in[0] * 2.0; }, vjp));
  };
  const Tensor product =
      op([](const Tensor& g, const Tensors& in, const Tensor&) -> Tensors { return {matmul(g, in[0])}; });
  CHECK_THROWS_WITH(backward(product), EndsWith("need a.dim(-1)==b.dim(-2) — in the backward pass of doubled"));
  const Tensor none = op([](const Tensor&, const Tensors&, const Tensor&) -> Tensors { return {}; });
  CHECK_THROWS_WITH(backward(none), "doubled: its vjp returned 0 gradients for 1 inputs");
  x.register_hook([&](const Tensor& g) { return matmul(g, g); });  // a leaf is no op
  CHECK_THROWS_WITH(backward(sum(x * 2.0)), StartsWith("matmul: ") && !Contains("backward pass"));
}

TEST_CASE("messages: a weight that does not fit is named with its module", "[messages]") {
  Rng rng(1);
  const Tensor x = ones({1, 2, 4});
  std::vector<Glu> model(2, Glu({.dim = 4, .hidden = 5}, rng));
  model[1].gate.weight = ones({3, 5});
  const auto run = [&] { return model[1](model[0](x)); };
  CHECK_THROWS_WITH(run(),
                    "linear: x=[1,2,4] and weight=[3,5] do not fit; need x [..., in] and weight [in, out] — in "
                    "Glu / Linear");
  {
    const AnomalyMode named({.modules = name_modules(model)});
    CHECK_THROWS_WITH(run(), Contains(" — in 1.gate (Linear)"));
  }
  model[1].gate.weight = Tensor();
  CHECK_THROWS_WITH(run(), Contains("weight is undefined") && Contains("Glu / Linear"));
  model[1].gate = Linear({.in = 4, .out = 5}, rng), model[1].gate.bias = ones({4});
  CHECK_THROWS_WITH(run(), Contains("bias=[4] does not fit weight=[4,5]") && Contains("Glu / Linear"));

  Gla gla({.dim = 4, .heads = 2, .short_conv = 2}, rng);
  gla.norm.weight = ones({5});
  CHECK_THROWS_WITH(gla(x), Contains("rms_norm: parameter [5] does not fit") && Contains(" — in Gla / Norm"));
  gla.conv.weight = ones({2, 3});
  CHECK_THROWS_WITH(gla(x), Contains("causal_conv1d: ") && Contains(" — in Gla / ShortConvolution"));
  FlashModel tokens({.layers = 1, .layer = {.dim = 4, .key_dim = 2}, .vocabulary = 3}, rng);
  tokens.embedding->weight = ones({3});
  CHECK_THROWS_WITH(tokens(zeros({1, 2}, {i64})), Contains("embedding: ") && Contains(" — in FlashModel / Embedding"));
  // A layer that names itself says no more than that.
  CHECK_THROWS_WITH(model[0].value(ones({2})),
                    "linear: x=[2] and weight=[4,5] do not fit; need x [..., in] and weight [in, out]");
}

namespace {
/// A module of the user's, which fails as f does.
struct Failing {
  static constexpr const char* type = "Failing";
  std::function<void()> f;
  void operator()() const {
    const ModuleScope scope(this, type);
    f();
  }
};
}  // namespace

TEST_CASE("messages: whatever is thrown while modules run ends with them, once", "[messages]") {
  const Tensor x = ones({2, 3}), i = arange(4), leaf = ones({2}).requires_grad_();
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"clamp: needs lo <= hi", [&] { clamp(x, 3, 1); }},
      {"index_select: index 2 is outside [0, 2)", [&] { index_select(x, 0, i); }},
      {"select: index 7 is out of range", [&] { select(x, 0, 7); }},
      {"matmul: inner dimensions differ", [&] { matmul(x, x); }},
      {"add: dtypes differ", [&] { x + to(x, f64); }},
      {"sqrt: needs f32, f64 or bf16", [&] { sqrt(i); }},
      {"item: needs exactly one element", [&] { x.item(); }},
      {"tensor: this Tensor is undefined", [&] { Tensor().shape(); }},
      {"requires_grad_: only f32", [&] { Tensor(i).requires_grad_(); }},
      {"backward: the output [2,3] has no history", [&] { backward(x); }},
      {"grad: the output [] has no history; no input required a gradient, it was made under NoGrad, or it is a "
       "gradient that is constant or was taken without {.create_graph = true}",
       [&] { grad(sum(grad(sum(square(leaf)), leaf)), leaf); }},
      {"eq: dtypes differ — got a=i64, b=f32 for shapes [4] and [2,3]; convert with to(x, dtype)",
       [&] { (void)(i == x); }},
      {"add_: dtypes differ — got x=f32[2,3], y=f64[2,3]",
       [&] {
         Tensor y = clone(x);
         add_(y, to(x, f64));
       }},
      {"scale_norm: dtypes differ — got x=f32[2,3], g=f64[1]", [&] { scale_norm(x, ones({1}, {f64})); }},
      {"cat: dtypes differ — got f32[2,3] and f64[2,3]; convert with to(x, dtype)",
       [&] {
         cat({x, to(x, f64)});
       }},
      {"item: needs exactly one element", [&] { to(x, meta).item(); }},
      {"read_text: cannot open '/no/file'", [&] { read_text("/no/file"); }},
  };
  const auto said = [](const std::function<void()>& f) -> std::string {
    try {
      f();
    } catch (const Error& e) { return e.what(); }
    return "nothing";
  };
  for (const auto& [begins, call] : calls) {
    const std::string alone = said(call);
    INFO(alone);
    CHECK(alone.starts_with(begins));
    CHECK(alone.find("Failing") == alone.npos);
    const Failing inner{call}, outer{[&] { inner(); }};
    CHECK(said([&] { inner(); }) == alone + " — in Failing");
    CHECK(said([&] { outer(); }) == alone + " — in Failing / Failing");
    CHECK(said(call) == alone);  // the modules have ended
    const Failing quoting{[&] {
      try {
        inner();
      } catch (const Error& e) { fail("quoting: ", e.what()); }
    }};
    CHECK(said([&] { quoting(); }) == "quoting: " + alone + " — in Failing / Failing");
    const AnomalyMode named({.modules = {{{&outer, Failing::type}, "blocks.3"}}});
    CHECK(said([&] { outer(); }) == alone + " — in blocks.3 (Failing) / Failing");
  }
  // A layer that names itself says no more than that.
  CHECK(said([] { Failing{[] { fail("fail_ing: no"); }}(); }) == "fail_ing: no");
}

TEST_CASE("messages: channels that RoPE cannot turn are refused when the layer is made", "[messages]") {
  Rng rng(1);
  CHECK_THROWS_WITH(Gau({.dim = 16, .key_dim = 7}, rng),
                    "gau: RoPE turns pairs of channels; need an even rot_dim of at most key_dim=7 — got 7");
  CHECK_THROWS_WITH(Gau({.dim = 16, .key_dim = 6, .heads = 2}, rng), Contains("of at most key_dim/heads=3 — got 3"));
  CHECK_THROWS_WITH(Gau({.dim = 16, .key_dim = 7, .use_rope = false, .bias = GauBias::rope}, rng),
                    Contains("key_dim=7"));
  CHECK_THROWS_WITH(Gau({.dim = 16, .key_dim = 8, .rope = {.frequencies = {1, 0.5}}}, rng),
                    Contains("2 RoPE frequencies do not fit 4 pairs"));
  CHECK_THROWS_WITH(Flash({.dim = 16, .key_dim = 7}, rng), Contains("flash: ") && Contains("key_dim=7"));
  CHECK_THROWS_WITH(McTfm({.dim = 6, .heads = 2}, rng), Contains("mc_tfm: ") && Contains("dim/heads=3"));
  CHECK_NOTHROW(Gau({.dim = 16, .key_dim = 7, .rope = {.rot_dim = 6}}, rng)(ones({1, 2, 16})));
  CHECK_NOTHROW(Flash({.dim = 16, .key_dim = 7, .use_rope = false}, rng)(ones({1, 2, 16})));
}

TEST_CASE("messages: files of another size, or of another kind", "[messages]") {
  Rng rng(1);
  const TempFolder folder;
  const Linear small({.in = 3, .out = 4}, rng), large({.in = 3, .out = 5}, rng);
  Adam of_small(parameters(small), {.lr = 1e-3}), of_large(parameters(large), {.lr = 1e-3});
  const std::string weights = folder / "weights", run = folder / "run", text = folder / "text";
  save(small, weights);
  save_checkpoint(small, run, of_small, rng, {3, {}});
  std::ofstream(text) << "hello, this is no file of tensors";

  const auto size = Contains("tensor \"weight\" has shape [3,4], the model needs [3,5]");
  CHECK_THROWS_WITH(load(large, weights), size && Contains("load: '" + weights));
  CHECK_THROWS_WITH(load_checkpoint(large, run, of_large, rng), size && Contains("load_checkpoint: '" + run));
  CHECK_THROWS_WITH(load_state(large, {{"weight", ones({3, 4})}}), size && Contains("load_state: "));
  CHECK_THROWS_WITH(load(small, text), Contains(text) && Contains("is it a safetensors file?"));
  CHECK_THROWS_WITH(load_checkpoint(small, weights, of_small, rng),
                    Contains(weights) && Contains("load() reads weights"));
}

TEST_CASE("messages: a tensor that does not fit is named with the path of its module", "[messages]") {
  Rng rng(1);
  const TempFolder folder;
  const std::string file = folder / "weights";
  const std::vector<Mlp> small(2, Mlp({.dim = 3, .hidden = 4}, rng)), large(2, Mlp({.dim = 3, .hidden = 5}, rng));
  save(small, file);
  const std::string wrong = "has shape [3,4], the model needs [3,5]";
  CHECK_THROWS_WITH(load(large, file), Contains("tensor \"0.in.weight\" " + wrong));
  CHECK_THROWS_WITH(load(large[1], file, {.prefix = "1."}),
                    Contains("load: '" + file + "', prefix \"1.\": tensor \"in.weight\" " + wrong));
}

TEST_CASE("messages: a table without the column", "[messages]") {
  const TempFolder folder;
  std::ofstream(folder / "a.csv") << "rooms,area\n1,2\n";
  const Csv csv = read_csv(folder / "a.csv");
  CHECK_THROWS_WITH(csv.index("z"), Contains("has no column \"z\"; it has rooms, area"));
  CHECK_THROWS_WITH(csv.index("room"), Contains("did you mean \"rooms\"?"));
}

TEST_CASE("messages: a file is named with the function that was called, whatever is wrong with it", "[messages]") {
  const TempFolder folder;
  const std::string empty_file = folder / "empty", missing = folder / "missing";
  std::ofstream{empty_file};
  Rng rng(1);
  Linear model({4, 4}, rng);
  Adam optimizer(parameters(model), {});
  using Call = std::function<void(const std::string&)>;
  const std::vector<std::pair<std::string, Call>> readers = {
      {"load_safetensors", [](const std::string& path) { load_safetensors(path); }},
      {"map_safetensors", [](const std::string& path) { map_safetensors(path); }},
      {"load", [&](const std::string& path) { load(model, path); }},
      {"load_model", [](const std::string& path) { load_model<Gau>(path); }},
      {"load_checkpoint", [&](const std::string& path) { load_checkpoint(model, path, optimizer, rng); }},
      {"read_checkpoint_state", [](const std::string& path) { read_checkpoint_state(path); }},
      {"load_stream", [](const std::string& path) { load_stream(path); }},
      {"load_pytorch", [&](const std::string& path) { load_pytorch(model, path); }},
      {"tokenizer", [](const std::string& path) { Tokenizer::from_file(path); }},
      {"read_text", [](const std::string& path) { read_text(path); }},
      {"read_idx", [](const std::string& path) { read_idx(path); }},
      {"read_npy", [](const std::string& path) { read_npy(path); }},
      {"read_file", [](const std::string& path) { read_file(path); }},
      {"read_csv", [](const std::string& path) { read_csv(path); }},
  };
  const auto check = [](const std::string& op, const std::string& path, const char* says, const auto& call) {
    std::string text = "nothing";
    try {
      call();
    } catch (const IOError& e) { text = e.what(); }
    INFO(op << ": " << text);
    CHECK(text.starts_with(op + ": "));
    CHECK(text.find(path) != text.npos);
    CHECK(text.find(says) != text.npos);
  };
  for (const auto& reader : readers) {
    const std::string& op = reader.first;
    for (const auto& [path, says] :
         {std::pair(missing, "No such file"), {folder / "", "is a folder"}, {empty_file, ""}})
      if (op != "read_file" || path != empty_file) check(op, path, says, [&, at = path] { reader.second(at); });
  }
  const std::string config = folder / "config.json", nowhere = folder / "no/file";
  check("load_model_files", missing, "No such file", [&] { load_model_files(missing); });
  std::ofstream(config) << "[]";
  std::ofstream(folder / "page") << "<!DOCTYPE html>";
  check("load", folder / "page", "begins with '<!DOCTYP'", [&] { load(model, folder / "page"); });
  check("load_model_files", "/config.json'", "no JSON object", [&] { load_model_files(folder / ""); });
  check("save_safetensors", nowhere, "", [&] { save_safetensors(nowhere, {}); });
  check("save", nowhere, "", [&] { save(model, nowhere); });
  check("save", nowhere, "", [&] { save(Stream(), nowhere); });
  check("save_checkpoint", nowhere, "", [&] { save_checkpoint(model, nowhere, optimizer, rng, {}); });
  check("write_file_atomically", nowhere, "", [&] { write_file_atomically(nowhere, [](FileWriter&) {}); });
}
