#include "fuzz/op_calls.h"

#include <sluice/core/number/random.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/layers/nn/kv_cache.h>
#include <sluice/ops/attention/relative_bias.h>
#include <sluice/ops/attention/top_k.h>
#include <sluice/ops/scan/causal_conv.h>
#include <sluice/ops/scan/delta_scan.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/elementwise/dropout.h>
#include <sluice/ops/matmul/einsum.h>
#include <sluice/ops/index/gather.h>
#include <sluice/ops/elementwise/map.h>
#include <sluice/ops/matmul/matmul.h>
#include <sluice/ops/shape/rearrange.h>
#include <sluice/ops/rows/reduce.h>
#include <sluice/ops/index/sampling.h>
#include <sluice/ops/rows/softmax.h>
#include <sluice/ops/index/sort.h>
#include <sluice/ops/shape/view.h>

#include <filesystem>
#include <fstream>
#include <tuple>
#include <type_traits>

#include <unistd.h>

// clang-format off
namespace sluice::testing {

namespace {

using Out = std::vector<Tensor>;
Out outputs(Tensor y) { return {std::move(y)}; }
Out outputs(std::vector<Tensor> ys) { return ys; }
Out outputs(Sorted s) { return {s.values, s.indices}; }
Out outputs(AttentionAndLse a) { return {a.out, a.lse}; }

/// The call of f with every argument drawn by its type.
template <class R, class... Args>
OpCall drawn(R (*f)(Args...)) {
  return [f](Draw& draw) {
    std::tuple<std::remove_cvref_t<Args>...> args{draw.get<std::remove_cvref_t<Args>>()...};
    return outputs(std::apply(f, args));
  };
}
using T = const Tensor&;
using Unary = Tensor (*)(T);
using Binary = Tensor (*)(T, T);
using Shaped = Tensor (*)(T, const Shape&, bool);

Rng& rng() {
  static Rng r(1);
  return r;
}

/// An edit of a tensor of any layout, on its own memory.
OpCall in_place(void (*edit)(Tensor&, Draw&)) {
  return [edit](Draw& draw) {
    Tensor x = draw.get<Tensor>();
    edit(x, draw);
    return outputs(x);
  };
}

/// q, k and v and a call; rarely with a generator.
template <class F>
OpCall attending(F f) {
  return [f](Draw& draw) {
    const DrawnAttention s(draw);
    return outputs(f(draw, s, draw.chance(0.3) ? &rng() : nullptr));
  };
}

/// q, k [b, h, n, m], v [b, h, n, e], a decay and a state.
struct ScanSample {
  Tensor q, k, v, decay, state;
  explicit ScanSample(Draw& draw) {
    const int64_t b = 1 + draw.below(2), h = 1 + draw.below(2), n = draw.size(), m = draw.size(), e = draw.size();
    const DType t = draw.chance(0.5) ? f32 : f64;
    q = draw.tensor({b, h, n, m}, t), k = draw.tensor({b, h, n, m}, t), v = draw.tensor({b, h, n, e}, t);
    if (draw.chance(0.6)) decay = draw.tensor(draw.chance(0.5) ? Shape{b, h, n} : Shape{b, h, n, draw.chance(0.5) ? m : e}, t);
    if (draw.chance(0.7)) state = draw.tensor({b, h, m, e}, t);
  }
};

/// A short equation or pattern: a known one, or one with a character changed.
std::string text(Draw& draw, std::initializer_list<const char*> known) {
  std::string s = draw.one_of(known);
  if (draw.chance(0.2)) s[static_cast<std::size_t>(draw.below(static_cast<int64_t>(s.size())))] = "abhij1.()-> ,"[draw.below(13)];
  return s;
}

/// A file with a drawn header and 64 bytes of data.
Out load_drawn_file(Draw& draw) {
  static const std::string path = (std::filesystem::temp_directory_path() / str("sluice_fuzz_", ::getpid(), ".safetensors")).string();
  const bool fits = draw.chance(0.4);
  const Shape shape = fits ? Shape{4, 4} : draw.get<Shape>();
  std::string header = "{\"a\":{\"dtype\":\"";
  header += fits ? "F32" : draw.one_of({"F32", "F64", "I64", "I32", "BOOL", "BF16", "F16", ""});
  header += "\",\"shape\":" + str(shape) + ",\"data_offsets\":[" + std::to_string(fits || draw.chance(0.8) ? 0 : draw.get<int64_t>()) + "," +
            std::to_string(fits || draw.chance(0.5) ? 64 : draw.get<int64_t>()) + "]}}";
  if (draw.chance(0.2)) header[static_cast<std::size_t>(draw.below(static_cast<int64_t>(header.size())))] = static_cast<char>(draw.below(256));
  const int64_t length = draw.chance(0.9) ? static_cast<int64_t>(header.size()) : draw.get<int64_t>();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8) << header << std::string(64, '\x01');
  file.close();
  struct Remove {
    ~Remove() { std::filesystem::remove(path); }
  } remove;
  Out out;
  for (auto& [name, x] : load_safetensors(path).tensors) out.push_back(x);
  return out;
}

Out stream_through_cache(Draw& draw) {
  KvCache cache;
  int64_t window = draw.chance(0.6) ? draw.get<int64_t>() : 0;
  Out out;
  for (int64_t steps = 1 + draw.below(4), b = 1 + draw.below(2); steps > 0; --steps) {
    const int64_t n = draw.size();
    const Tensor k = draw.tensor({b, 2, n, 3}, f32), v = draw.tensor({b, 2, n, 2}, f32);
    if (draw.chance(0.05)) window = draw.get<int64_t>();
    out = cache.append({k, v}, window);
  }
  return out;
}

OpCalls make_calls() {
  OpCalls c;
  for (auto [name, f] : std::initializer_list<std::pair<const char*, Unary>>{
           {"neg", neg}, {"square", square}, {"reciprocal", reciprocal}, {"exp", exp}, {"expm1", expm1}, {"log", log},
           {"log1p", log1p}, {"sqrt", sqrt}, {"rsqrt", rsqrt}, {"tanh", tanh}, {"sigmoid", sigmoid}, {"softplus", softplus},
           {"erf", erf}, {"normal_cdf", normal_cdf}, {"sin", sin}, {"cos", cos}, {"abs", abs}, {"sign", sign}, {"floor", floor}, {"ceil", ceil},
           {"round", round}, {"trunc", trunc}, {"isnan", isnan}, {"isinf", isinf}, {"isfinite", isfinite}, {"nonzero", nonzero},
           {"relu", relu}, {"relu2", relu2}, {"elu1", elu1}, {"silu", silu}, {"gelu", gelu}, {"gelu_tanh", gelu_tanh},
           {"laplace", laplace}, {"ns_sigmoid", ns_sigmoid}, {"zeros_like", zeros_like}, {"ones_like", ones_like},
           {"contiguous", contiguous}, {"clone", clone}, {"squeeze", squeeze}})
    c.emplace_back(name, drawn(f));
  for (auto [name, f] : std::initializer_list<std::pair<const char*, Binary>>{
           {"add", add}, {"sub", sub}, {"mul", mul}, {"div", div}, {"pow", pow}, {"remainder", remainder}, {"floor_divide", floor_divide}, {"outer", outer}, {"masked_select", masked_select}, {"maximum", maximum}, {"minimum", minimum},
           {"eq", eq}, {"ne", ne}, {"lt", lt}, {"le", le}, {"gt", gt}, {"ge", ge}, {"glu", glu}, {"reglu", reglu}, {"geglu", geglu}, {"geglu_tanh", geglu_tanh}, {"swiglu", swiglu},
           {"bilinear", bilinear}, {"silu_glu", silu_glu}, {"matmul", matmul}, {"embedding", embedding}})
    c.emplace_back(name, drawn(f));
  for (auto [name, f] : std::initializer_list<std::pair<const char*, Shaped>>{
           {"sum", sum}, {"mean", mean}, {"max", max}, {"min", min}, {"logsumexp", logsumexp}, {"norm", norm}, {"prod", prod},
           {"any", any}, {"all", all}})
    c.emplace_back(name, drawn(f));
  for (auto [name, f] : std::initializer_list<std::pair<const char*, Binary>>{
           {"logical_and", logical_and}, {"logical_or", logical_or}, {"logical_not", [](T x, T) { return logical_not(x); }},
           {"any", [](T x, T) { return any(x); }}, {"all", [](T x, T) { return all(x); }}})
    c.emplace_back(name, [f = f](Draw& d) {
      const Shape s{d.size(), d.size()};
      const Tensor x = d.tensor(s, boolean), y = d.tensor(s, boolean);
      return outputs(f(x, y));
    });
  auto add_call = [&](const char* name, OpCall f) { c.emplace_back(name, std::move(f)); };
  // elementwise
  add_call("pow", drawn(static_cast<Tensor (*)(T, double)>(pow)));
  add_call("scale", drawn(scale)), add_call("add_scalar", drawn(add_scalar));
  using Bound = std::optional<double>;
  add_call("clamp", drawn(static_cast<Tensor (*)(T, Bound, Bound)>(clamp)));
  using ByNumber = Tensor (*)(T, double);
  for (auto [name, f] : std::initializer_list<std::pair<const char*, ByNumber>>{
           {"remainder", remainder}, {"floor_divide", floor_divide}, {"maximum", maximum}, {"minimum", minimum}, {"eq", eq}, {"ne", ne}, {"lt", lt}, {"le", le}, {"gt", gt}, {"ge", ge}})
    c.emplace_back(name, drawn(f));
  add_call("lerp", drawn(static_cast<Tensor (*)(T, T, T)>(lerp))), add_call("lerp", drawn(static_cast<Tensor (*)(T, T, double)>(lerp)));
  add_call("where", drawn(static_cast<Tensor (*)(T, T, T)>(where))), add_call("where", [](Draw& d) {
    const Tensor x = d.get<Tensor>(), mask = x.defined() ? d.tensor(x.shape(), boolean) : d.get<Tensor>();
    return outputs(d.chance(0.5) ? where(mask, x, d.get<double>()) : where(mask, d.get<double>(), x));
  });
  add_call("masked_select", [](Draw& d) {
    const Tensor x = d.get<Tensor>(), mask = x.defined() ? d.tensor(x.shape(), boolean) : d.get<Tensor>();
    return outputs(masked_select(x, mask));
  });
  add_call("multinomial", [](Draw& d) {
    const Tensor x = d.tensor({d.size(), d.size()}, f32), w = d.chance(0.3) ? d.get<Tensor>() : is_float(x.dtype()) ? softmax(x) : x;
    const int64_t n = d.chance(0.7) ? d.size() : d.get<int64_t>();
    return outputs(multinomial(w, n, rng(), d.chance(0.5)));
  });
  add_call("like", drawn(static_cast<Tensor (*)(T, double)>(like)));
  add_call("masked_fill", drawn(masked_fill)), add_call("leaky_relu", drawn(static_cast<ByNumber>(leaky_relu)));
  add_call("elu", drawn(static_cast<ByNumber>(elu)));
  add_call("activate", drawn(activate)), add_call("dropout", [](Draw& d) { return outputs(dropout(d.get<Tensor>(), d.get<double>(), rng())); });
  add_call("map", [](Draw& d) {
    const Tensor a = d.get<Tensor>(), b = d.get<Tensor>(), e = d.get<Tensor>();
    return outputs(map([](auto x, auto y, auto z) { return select(x > 0.0, x * exp(y), z / (x - 1.0)); }, a, b, e));
  });
  // creation
  add_call("zeros", drawn(zeros)), add_call("ones", drawn(ones)), add_call("full", drawn(full)), add_call("eye", drawn(eye));
  add_call("arange", drawn(static_cast<Tensor (*)(double, double, double, TensorOptions)>(arange)));
  add_call("arange", drawn(static_cast<Tensor (*)(int64_t, TensorOptions)>(arange)));
  add_call("linspace", drawn(linspace)), add_call("one_hot", drawn(one_hot)), add_call("to", drawn(static_cast<Tensor (*)(T, DType)>(to)));
  add_call("to", drawn(static_cast<Tensor (*)(T, Device)>(to)));
  add_call("fill_", in_place([](Tensor& x, Draw& d) { fill_(x, d.get<double>()); }));
  add_call("copy_", in_place([](Tensor& x, Draw& d) { copy_(x, x.defined() && d.chance(0.2) ? flip(x, {0}) : d.get<Tensor>()); }));
  add_call("add_", in_place([](Tensor& x, Draw& d) { add_(x, x.defined() && d.chance(0.2) ? flip(x, {0}) : d.get<Tensor>(), d.get<double>()); }));
  add_call("scale_", in_place([](Tensor& x, Draw& d) { scale_(x, d.get<double>()); }));
  // views
  add_call("reshape", drawn(reshape)), add_call("flatten", drawn(flatten)), add_call("unflatten", drawn(unflatten));
  add_call("transpose", drawn(transpose)), add_call("permute", drawn(permute)), add_call("expand", drawn(expand));
  add_call("unsqueeze", drawn(unsqueeze)), add_call("squeeze", drawn(static_cast<Tensor (*)(T, int64_t)>(squeeze)));
  add_call("select", drawn(static_cast<Tensor (*)(T, int64_t, int64_t)>(select))), add_call("slice", drawn(slice));
  add_call("narrow", drawn(narrow)), add_call("unbind", drawn(unbind)), add_call("split", drawn(split)), add_call("chunk", drawn(chunk));
  add_call("unfold", drawn(unfold)), add_call("flip", drawn(flip)), add_call("diagonal", drawn(diagonal));
  add_call("cat", drawn(cat)), add_call("stack", drawn(stack)), add_call("pad", drawn(pad)), add_call("roll", drawn(roll));
  add_call("fold", drawn(fold)), add_call("repeat_interleave", drawn(repeat_interleave)), add_call("repeat", drawn(repeat));
  add_call("fold", [](Draw& d) {  // windows that fit
    const int64_t count = d.size(), size = d.size(), step = d.chance(0.8) ? 1 + d.below(4) : d.get<int64_t>();
    const Tensor w = d.tensor({count, 2, size});
    return outputs(fold(w, 0, step > -99 && step < 99 ? std::max<int64_t>(0, (count - 1) * step + size) : size, step));
  });
  // reductions, order, positions
  add_call("argmax", drawn(argmax)), add_call("argmin", drawn(argmin)), add_call("var", drawn(var)), add_call("std_dev", drawn(std_dev));
  add_call("cumsum", drawn(cumsum)), add_call("cumprod", drawn(cumprod)), add_call("softmax", drawn(softmax)), add_call("log_softmax", drawn(log_softmax));
  add_call("sort", drawn(sort)), add_call("topk", drawn(topk)), add_call("argsort", drawn(argsort));
  add_call("triu", drawn(triu)), add_call("tril", drawn(tril)), add_call("causal_mask", drawn(causal_mask));
  auto indexed = [&](const char* name, auto f) {  // half of the time an index that fits
    add_call(name, [f](Draw& d) {
      const Tensor x = d.get<Tensor>();
      const int64_t dim = d.get<int64_t>();
      const Tensor index = d.chance(0.7) && x.defined() ? d.tensor(d.chance(0.5) ? x.shape() : Shape{d.size()}, d.chance(0.8) ? i64 : i32) : d.get<Tensor>();
      return outputs(f(d, x, dim, index));
    });
  };
  indexed("gather", [](Draw&, T x, int64_t dim, T i) { return gather(x, dim, i); });
  indexed("index_select", [](Draw&, T x, int64_t dim, T i) { return index_select(x, dim, i); });
  const auto source = [](Draw& d, T x, T i) {
    return i.defined() && x.defined() && d.chance(0.8) ? d.tensor(i.shape(), x.dtype()) : d.get<Tensor>(); };
  indexed("scatter_add", [=](Draw& d, T x, int64_t dim, T i) { return scatter_add(x, dim, i, source(d, x, i)); });
  indexed("scatter", [=](Draw& d, T x, int64_t dim, T i) { return scatter(x, dim, i, source(d, x, i)); });
  add_call("index_add", [](Draw& d) {  // what fits
    const int64_t rows = d.size(), n = d.size(), width = d.size();
    const Tensor x = d.tensor({rows, width}, f32), src = d.tensor({n, width}, f32), index = d.tensor({n}, i64);
    return outputs(index_add(x, 0, index, src));
  });
  add_call("cross_entropy", [](Draw& d) {
    const int64_t rows = d.size(), classes = d.size() + 2;
    const Tensor x = d.tensor({rows, classes}, f32), t = d.chance(0.5) ? d.tensor({rows}, i64) : d.tensor({rows, classes}, f32);
    return outputs(cross_entropy(x, t, d.get<CrossEntropyOptions>()));
  });
  add_call("nll_loss", [](Draw& d) {
    const int64_t rows = d.size(), classes = d.size() + 2;
    const Tensor x = d.tensor({rows, classes}, f32), targets = d.tensor({rows}, i64);
    auto o = d.get<CrossEntropyOptions>();
    if (d.chance(0.5)) o.weight = d.tensor({classes}, f32);
    return outputs(is_float(x.dtype()) && d.chance(0.5) ? nll_loss(log_softmax(x), targets, o) : nll_loss(x, targets, o));
  });
  indexed("index_add", [](Draw& d, T x, int64_t dim, T i) { return index_add(x, dim, i, d.get<Tensor>()); });
  indexed("cross_entropy", [](Draw& d, T x, int64_t, T i) { return cross_entropy(x, i, d.get<CrossEntropyOptions>()); });
  indexed("nll_loss", [](Draw& d, T x, int64_t, T i) { return nll_loss(x, i, d.get<CrossEntropyOptions>()); });
  indexed("rope_at", [](Draw& d, T x, int64_t, T i) { return rope_at(x, i, d.get<RopeOptions>()); });
  indexed("one_hot", [](Draw& d, T, int64_t n, T i) { return one_hot(i, n, d.get<TensorOptions>()); });
  indexed("embedding", [](Draw&, T x, int64_t, T i) { return embedding(x, i); });
  // products, norms, losses
  add_call("linear", drawn(linear));
  add_call("linear", [](Draw& d) {
    const int64_t in = d.size(), out = d.size();
    const Tensor x = d.tensor({d.size(), d.size(), in}, f32), w = d.tensor({in, out}, f32);
    return outputs(linear(x, w, d.chance(0.7) ? d.tensor({out}, f32) : Tensor()));
  });
  add_call("matmul", [](Draw& d) {
    const int64_t b = d.size(), n = d.size(), k = d.size(), m = d.size();
    const Tensor x = d.tensor({b, n, k}, f64), y = d.tensor({d.chance(0.5) ? b : 1, k, m}, f64);
    return outputs(matmul(x, y));
  });
  add_call("einsum", [](Draw& d) {
    const std::string s = text(d, {"ij,jk->ik", "bij,bjk->bik", "i,j->ij", "ii->i", "...i,...i->...", "ij->", "ij,ij,j->i", "bqhd,bkhd->bhqk", "i->i"});
    return outputs(einsum(s, d.get<std::vector<Tensor>>()));
  });
  add_call("rearrange", [](Draw& d) {
    const std::string s = text(d, {"a (b h) -> b h a", "a b -> (a b)", "a b -> a h b", "... a -> a ...", "(h i) -> i h", "a -> (h i) a"});
    const Tensor x = d.get<Tensor>();
    if (d.chance(0.3)) return outputs(rearrange(s, x));
    if (d.chance(0.5)) return outputs(rearrange(s, x, {{"h", d.get<int64_t>()}}));
    return outputs(rearrange(s, x, {{"h", d.get<int64_t>()}, {"i", d.get<int64_t>()}}));
  });
  add_call("layer_norm", drawn(layer_norm)), add_call("rms_norm", drawn(rms_norm)), add_call("scale_norm", drawn(scale_norm));
  add_call("cross_entropy", drawn(cross_entropy)), add_call("mse_loss", drawn(mse_loss));
  add_call("l1_loss", drawn(l1_loss)), add_call("huber_loss", drawn(huber_loss));
  add_call("bce_with_logits", drawn(bce_with_logits)), add_call("kl_div", drawn(kl_div));
  add_call("rope", drawn(rope)), add_call("rope_at", drawn(rope_at));
  add_call("rope_at", [](Draw& d) { const int64_t n = d.size(); return outputs(rope_at(d.tensor({d.size(), n, 2 * d.size()}, f32), d.tensor({n}, i64), {})); });
  add_call("t5_buckets", drawn(t5_buckets));
  add_call("t5_bucket", [](Draw& d) { return t5_bucket(d.get<int64_t>(), d.get<T5BucketOptions>()), Out{}; });
  auto table = [&](const char* name, auto f) {  // m queries and n keys, of which the table may know
    add_call(name, [f](Draw& d) {
      const int64_t m = d.chance(0.8) ? d.size() : d.get<int64_t>(), n = d.chance(0.8) ? d.size() : d.get<int64_t>();
      const int64_t width = m < 99 && n < 99 && m > -9 && n > -9 ? n + m - 1 : 3;
      return outputs(f(d, m, n, std::max<int64_t>(0, width)));
    });
  };
  table("relative_toeplitz", [](Draw& d, int64_t m, int64_t n, int64_t w) { return relative_toeplitz(d.tensor({1 + d.below(2), 2 * w + 1}), m, n); });
  table("toeplitz", [](Draw& d, int64_t m, int64_t n, int64_t w) { return toeplitz(d.tensor({2 * w + 1}), m, n, d.get<int64_t>()); });
  table("relative_matrix", [](Draw& d, int64_t m, int64_t n, int64_t w) { return relative_matrix(d.tensor({2, w}), m, n); });
  table("relative_t5", [](Draw& d, int64_t m, int64_t n, int64_t) {
    const auto o = d.get<T5BucketOptions>();
    return relative_t5(d.tensor({o.buckets < 70 ? o.buckets : 3, 2}), m, n, o);
  });
  add_call("relative_alibi", drawn(relative_alibi)), add_call("alibi_slopes", drawn(alibi_slopes));
  table("relative_rope", [](Draw& d, int64_t m, int64_t n, int64_t) {
    const int64_t s = d.size();
    const Tensor a = d.tensor({2 * s}, f32), b = d.tensor({2 * s}, f32);
    return relative_rope(a, b, m, n, d.get<RopeOptions>());
  });
  // attention and the scan
  using A = const DrawnAttention&;
  add_call("attention", attending([](Draw&, A s, Rng* r) { return attention(s.q, s.k, s.v, s.options, r); }));
  add_call("attention_with_lse", attending([](Draw&, A s, Rng* r) { return attention_with_lse(s.q, s.k, s.v, s.options, r); }));
  add_call("attention_reference", attending([](Draw&, A s, Rng* r) { return attention_reference(s.q, s.k, s.v, s.options, r); }));
  add_call("attention_map", attending([](Draw&, A s, Rng*) { return attention_map(s.q, s.k, s.options); }));
  add_call("attention_in_order", attending([](Draw& d, A s, Rng*) {
    auto tile = [&](int64_t n) {  // its ops are as many as its tiles
      const int64_t size = d.get<int64_t>();
      return size > 0 ? std::max(size, n / 8) : size;
    };
    const int64_t rows = tile(s.m), cols = tile(s.n);
    return attention_in_order(s.q, s.k, s.v, d.one_of({TileOrder::flash1, TileOrder::flash2}), rows, cols, s.options);
  }));
  add_call("merge_attention", [](Draw& d) {
    const Shape rows{1 + d.below(2), d.size(), d.size()};
    Shape out = rows;
    out.push_back(d.size());
    const AttentionAndLse a{d.tensor(out, f32), d.tensor(rows, f32)}, b{d.tensor(out, f32), d.tensor(rows, f32)};
    return outputs(merge_attention(a, b));
  });
  add_call("visible_pairs", [](Draw& d) {
    const DrawnAttention s(d);
    if (d.chance(0.5)) return outputs(visible_pairs(s.mask, s.batch, s.heads, s.m, s.n));
    return outputs(visible_pairs(s.mask, d.get<int64_t>(), d.get<int64_t>(), d.get<int64_t>(), d.get<int64_t>()));
  });
  add_call("visible_count", [](Draw& d) {
    const DrawnAttention s(d);
    if (d.chance(0.5)) return outputs(visible_count(s.mask, s.batch, s.heads, s.m, s.n));
    return outputs(visible_count(s.mask, d.get<int64_t>(), d.get<int64_t>(), d.get<int64_t>(), d.get<int64_t>()));
  });
  add_call("topk_mask", [](Draw& d) {
    const Tensor scores = d.get<Tensor>();
    const TopKTies ties = d.one_of({TopKTies::index, TopKTies::threshold});
    return outputs(topk_mask(scores, d.get<int64_t>(), ties, d.chance(0.5) && scores.defined() ? d.tensor(scores.shape(), boolean) : Tensor()));
  });
  add_call("causal_conv1d", drawn(causal_conv1d));
  add_call("causal_conv1d", [](Draw& d) {  // operands that fit
    const int64_t n = d.size(), channels = d.size(), width = 1 + d.below(4);
    return outputs(causal_conv1d(d.tensor({2, n, channels}), d.tensor({width, channels}), d.chance(0.5) ? d.tensor({channels}) : Tensor(),
                                 d.chance(0.5) ? d.tensor({2, width - 1, channels}) : Tensor(),
                                 d.one_of({Act::identity, Act::silu, Act::gelu})));
  });
  auto scanned = [&](const char* name, auto f) {
    add_call(name, [f](Draw& d) {
      const ScanSample s(d);
      return outputs(f(d, s));
    });
  };
  using S = const ScanSample&;
  scanned("linear_scan", [](Draw& d, S s) { return linear_scan(s.q, s.k, s.v, s.decay, d.get<LinearScanOptions>()); });
  scanned("linear_scan_state", [](Draw&, S s) { return linear_scan_state(s.k, s.v, s.decay, s.state); });
  scanned("linear_scan_carry", [](Draw&, S s) { return linear_scan_carry(s.q, s.state, s.decay); });
  scanned("delta_scan", [](Draw& d, S s) {
    const DeltaScanResult y = delta_scan(s.q, s.k, d.chance(0.7) ? s.k : d.get<Tensor>(), s.v, s.decay, s.state, {d.get<int64_t>()});
    return std::vector<Tensor>{y.out, y.state};
  });
  scanned("delta_rule", [](Draw& d, S s) {
    const Tensor beta = d.chance(0.7) && s.v.defined() && s.v.rank() == 4 ? d.tensor({s.v.dim(0), s.v.dim(1), s.v.dim(2)}, f32) : d.get<Tensor>();
    const DeltaScanResult y = delta_rule(s.q, s.k, s.v, beta, s.decay, s.state);
    return std::vector<Tensor>{y.out, y.state};
  });
  scanned("delta_values", [](Draw& d, S s) { return delta_values(s.k, d.chance(0.7) ? s.k : d.get<Tensor>(), s.v, s.decay); });
  // beside ops/: what else takes sizes from outside
  add_call("uniform", [](Draw& d) { return outputs(uniform(d.get<Shape>(), d.get<double>(), d.get<double>(), rng(), d.get<TensorOptions>())); });
  add_call("normal", [](Draw& d) { return outputs(normal(d.get<Shape>(), d.get<double>(), d.get<double>(), rng(), d.get<TensorOptions>())); });
  add_call("truncated_normal", [](Draw& d) { return outputs(truncated_normal(d.get<Shape>(), d.get<double>(), d.get<double>(), rng(), d.get<TensorOptions>())); });
  add_call("bernoulli", [](Draw& d) { return outputs(bernoulli(d.get<Shape>(), d.get<double>(), rng())); });
  add_call("randint", [](Draw& d) { return outputs(randint(d.get<int64_t>(), d.get<int64_t>(), d.get<Shape>(), rng())); });
  add_call("permutation", [](Draw& d) { return outputs(permutation(d.get<int64_t>(), rng())); });
  add_call("empty", [](Draw& d) { return empty(d.get<Shape>(), d.get<TensorOptions>()), Out{}; });
  add_call("from", [](Draw& d) { return outputs(Tensor::from(std::vector<float>(static_cast<std::size_t>(d.below(4)), 1), d.get<Shape>())); });
  add_call("dim", [](Draw& d) { return d.get<Tensor>().dim(d.get<int64_t>()), Out{}; });
  add_call("item", [](Draw& d) {
    const Tensor x = d.get<Tensor>();
    return d.chance(0.5) ? static_cast<void>(x.item()) : static_cast<void>(x.item<int64_t>()), Out{};
  });
  add_call("load_safetensors", load_drawn_file), add_call("kv_cache", stream_through_cache);
  return c;
}

}  // namespace

const OpCalls& op_calls() {
  static const OpCalls calls = [] {
    OpCalls c = make_calls();
    add_selection_calls(c);
    return c;
  }();
  return calls;
}

}  // namespace sluice::testing
