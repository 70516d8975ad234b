// Rows: ops/attention/attention.h, ops/attention/attention_reference.h, ops/attention/attention_mask.h.
#include "support/naive_attention.h"
#include "support/op_cases.h"

#include <sluice/ops/attention/attention_reference.h>
#include <sluice/ops/elementwise/elementwise.h>

#include <cmath>

// clang-format off
namespace sluice::testing {

namespace {

struct Sizes {
  int64_t batch = 1, heads = 1, kv_heads = 1, m = 2, n = 3, d = 1, e = 1;
};
/// Operands beside q, k and v.
enum Extra { bias, bias_of_keys, bias_of_queries, relative_bias, sink, shared_sink, row_scale, keys, shared_keys, segments, blocks,
             blocks_of_heads, blocks_of_queries, dense, shared_dense };

struct Row {
  const char* name;
  AttentionOptions options = {};
  std::vector<Extra> extras = {};
  Sizes sizes = {};
  std::vector<Sizes> more = {};
  Sizes large = {.m = 0};
};

std::vector<Dims> dims_of(const Row& row, const Sizes& s) {
  const int64_t block = std::max<int64_t>(row.options.mask.block, 1), rows = (s.m + block - 1) / block,
                cols = (s.n + block - 1) / block;
  std::vector<Dims> out{{s.batch, s.heads, s.m, s.d}, {s.batch, s.kv_heads, s.n, s.d}, {s.batch, s.kv_heads, s.n, s.e}};
  for (Extra extra : row.extras) switch (extra) {
      case bias: out.push_back({s.heads, s.m, s.n}); break;
      case bias_of_keys: out.push_back({s.batch, 1, 1, s.n}); break;
      case bias_of_queries: out.push_back({s.batch, 1, s.m, 1}); break;
      case relative_bias: out.push_back({s.heads, s.n + s.m - 1}); break;
      case sink: out.push_back({s.heads}); break;
      case shared_sink: out.push_back({1}); break;
      case row_scale: out.push_back({s.batch, 1, s.m}); break;
      case keys: out.push_back({s.batch, s.n}); break;
      case shared_keys: out.push_back({1, s.n}); break;
      case segments: out.push_back({s.batch, s.m}), out.push_back({1, s.n}); break;
      case blocks: out.push_back({rows, cols}); break;
      case blocks_of_heads: out.push_back({s.heads, rows, cols}); break;
      case blocks_of_queries: out.push_back({s.batch, s.heads, s.m, cols}); break;
      case dense: out.push_back({s.batch, s.heads, s.m, s.n}); break;
      case shared_dense: out.push_back({s.m, s.n}); break;
    }
  return out;
}

/// Scores of relu² have a kink at 0: its rows of width 1 have k away from 0 and q above it. Laplace weights of
/// negative scores are differences near 0: its rows have q and k above 0.
std::vector<Input> inputs_of(const Row& row) {
  const std::vector<Dims> dims = dims_of(row, row.sizes);
  const bool kink = row.options.weighting == Weighting::relu2, above = row.options.weighting == Weighting::laplace;
  std::vector<Input> in{kink || above ? positive(dims[0]) : real(dims[0], -1, 1),
                        kink ? away(dims[1], {0}, -2, 2, 0.5) : real(dims[1], above ? 0 : -1, 1), real(dims[2])};
  for (Extra extra : row.extras) {
    const Dims d = dims[in.size()];
    switch (extra) {
      case bias: case bias_of_keys: case bias_of_queries: case relative_bias:  // small beside |q·k| >= 1/8
        in.push_back(kink ? real(d, -0.02, 0.02) : real(d, above ? 0 : -1, 1));
        break;
      case sink: case shared_sink: in.push_back(real(d)); break;
      case row_scale: in.push_back(constant(positive(d))); break;
      case segments: in.push_back(index(d, 2)), in.push_back(index(dims[in.size()], 2)); break;
      default: in.push_back(mask(d)); break;
    }
  }
  return in;
}

AttentionOptions options_of(const Row& row, const In& x) {
  AttentionOptions o = row.options;
  std::size_t i = 3;
  for (Extra extra : row.extras) switch (extra) {
      case bias: case bias_of_keys: case bias_of_queries: o.bias = x[i++]; break;
      case relative_bias: o.relative_bias = x[i++]; break;
      case sink: case shared_sink: o.sink = x[i++]; break;
      case row_scale: o.row_scale = x[i++]; break;
      case keys: case shared_keys: o.mask.keys = x[i++]; break;
      case segments: o.mask.query_segments = x[i++], o.mask.key_segments = x[i++]; break;
      case blocks: case blocks_of_heads: case blocks_of_queries: o.mask.blocks = x[i++]; break;
      case dense: case shared_dense: o.mask.dense = x[i++]; break;
    }
  return o;
}

/// The naive result for a row's inputs; operands of rank 2 and 3 lack leading dims.
NaiveAttention naive(const Row& row, const std::vector<Input>& inputs, const Arrays& xs) {
  const OpCase carrier{.inputs = inputs};
  const AttentionOptions o = options_of(row, input_tensors(carrier, xs, f64));
  auto four = [](Array x) {
    if (x.rank() == 3) x.shape.insert(x.shape.begin() + 1, 1);
    if (x.rank() == 2) x.shape.insert(x.shape.begin(), {1, 1});
    return x;
  };
  return naive_attention(four(xs[0]), four(xs[1]), four(xs[2]), o);
}
Array of_rank(Array x, std::size_t rank) {
  if (rank == 3) x.shape.erase(x.shape.begin() + 1);
  if (rank == 2) x.shape.erase(x.shape.begin(), x.shape.begin() + 2);
  return x;
}

enum class Function { attention, reference, map, with_lse };

OpCase case_of(Function function, const Row& row) {
  const char* names[] = {"attention", "attention_reference", "attention_map", "attention_with_lse"};
  const std::vector<Input> inputs = inputs_of(row);
  OpCase c{.op = names[static_cast<int>(function)], .variant = row.name, .inputs = inputs, .ulps = 24};
  c.gradient_ulps = 48;
  c.call = [=](const In& x) -> Outputs {
    const AttentionOptions o = options_of(row, x);
    switch (function) {
      case Function::attention: return attention(x[0], x[1], x[2], o);
      case Function::reference: return attention_reference(x[0], x[1], x[2], o);
      case Function::map: return attention_map(x[0], x[1], o);
      case Function::with_lse: break;
    }
    const AttentionAndLse both = attention_with_lse(x[0], x[1], x[2], o);
    return std::vector<Tensor>{both.out, both.lse};
  };
  c.reference = [=](const Arrays& xs) -> Expected {
    const NaiveAttention r = naive(row, inputs, xs);
    const std::size_t rank = xs[0].shape.size();
    if (function == Function::map) return of_rank(r.weights, rank);
    if (function == Function::with_lse) return Arrays{of_rank(r.out, rank), of_rank(r.lse, rank)};
    return of_rank(r.out, rank);
  };
  for (const Sizes& s : row.more) c.shapes.push_back(dims_of(row, s));
  if (row.large.m > 0) c.large = dims_of(row, row.large);
  c.bitwise = false;
  return c;
}

const std::vector<Sizes> kEmpty{{.m = 0},     {.n = 0},                     {.d = 0},         {.e = 0},
                                {.batch = 0}, {.heads = 0, .kv_heads = 0}, {.m = 0, .n = 0}};
const std::vector<Sizes> kTileEdges{
    {.m = 1, .n = 1},                   {.m = 15, .n = 17, .d = 5, .e = 3}, {.m = 17, .n = 16, .d = 3, .e = 5},
    {.m = 63, .n = 65, .d = 4, .e = 2}, {.m = 65, .n = 64, .d = 2, .e = 4}, {.m = 3, .n = 129, .d = 4, .e = 4},
    {.m = 130, .n = 127, .d = 2, .e = 1}};
// Several of everything.
const Sizes kSmall{.batch = 2, .heads = 4, .kv_heads = 2, .m = 5, .n = 7, .d = 3, .e = 2},
    kWide{.batch = 2, .heads = 4, .kv_heads = 2, .m = 17, .n = 40, .d = 3, .e = 2},
    // One more than whole tiles of 128 queries and 256 keys (128 backward), and than 16 and 32 lanes.
    kLarge{.batch = 2, .heads = 2, .kv_heads = 1, .m = 129, .n = 513, .d = 17, .e = 33},
    kSplit{.heads = 2, .kv_heads = 2, .m = 17, .n = 1025, .d = 3, .e = 17};  // the backward pass shares its keys among two tasks

}  // namespace

void add_attention_cases(Cases& c) {
  struct {
    Weighting weighting;
    const char* name;
  } const weightings[] = {{Weighting::softmax, "softmax"}, {Weighting::relu2, "relu2"}, {Weighting::laplace, "laplace"},
                          {Weighting::sigmoid, "sigmoid"}, {Weighting::linear, "linear"}};
  std::vector<Row> rows;
  auto plain = [&](const char* name, AttentionOptions o, std::vector<Extra> extras = {}, Sizes sizes = {}) -> Row& {
    return rows.emplace_back(Row{name, std::move(o), std::move(extras), sizes});
  };
  auto with = [](AttentionMask mask, Weighting weighting = Weighting::softmax) {
    AttentionOptions o;
    o.mask = std::move(mask), o.weighting = weighting;
    return o;
  };
  auto tiled = [](AttentionOptions o, int64_t tile_rows, int64_t tile_cols) {
    o.tile_rows = tile_rows, o.tile_cols = tile_cols;
    return o;
  };

  for (const auto& w : weightings) {
    Row& row = plain(w.name, {.weighting = w.weighting});
    row.more = {{.heads = 2, .m = 3, .n = 4}, kSmall};
    row.more.insert(row.more.end(), kTileEdges.begin(), kTileEdges.end());
    row.more.insert(row.more.end(), kEmpty.begin(), kEmpty.end());
    row.large = kLarge;
  }
  plain("width 2", {}, {}, {.m = 2, .n = 3, .d = 2, .e = 2});
  plain("scale", {.scale = -1.5}, {}, {.m = 2, .n = 3});
  plain("scale 0", {.scale = 0.0});
  plain("grouped heads", {}, {}, {.heads = 2}).more = {{.batch = 2, .heads = 6, .kv_heads = 2, .m = 4, .d = 2, .e = 3}};

  // Every rule of a mask, for a normalised and an elementwise weighting; more queries than keys leaves some
  // rows without any.
  const Sizes three{.m = 3, .n = 3}, tall{.m = 4, .n = 2}, wide{.m = 2, .n = 5};
  const std::vector<Sizes> shapes{tall, wide, {.batch = 2, .heads = 4, .kv_heads = 2, .m = 9, .n = 13, .d = 3, .e = 2},
                                  {.heads = 2, .kv_heads = 2, .m = 66, .n = 70, .d = 2, .e = 2}};
  const Sizes threads{.heads = 2, .kv_heads = 2, .m = 129, .n = 257, .d = 17, .e = 17};
  for (Weighting w : {Weighting::softmax, Weighting::relu2}) {
    auto rule = [&](const char* name, AttentionMask mask, std::vector<Extra> extras = {}) -> Row& {
      Row& row = plain(name, with(std::move(mask), w), std::move(extras), three);
      row.more = shapes, row.large = threads;
      return row;
    };
    rule("causal", {.causal = true});
    rule("window", {.window = 2});
    rule("window, causal", {.causal = true, .window = 5});
    rule("dilation", {.dilation = 2});
    rule("window, dilation", {.window = 2, .dilation = 3});
    rule("global", {.window = 1, .global = {1, 7, 40}});
    rule("global, dilation, causal", {.causal = true, .window = 2, .dilation = 2, .global = {0, 20, 500}});
    rule("keys", {}, {keys});
    rule("keys of all sequences", {.causal = true}, {shared_keys});
    rule("segments", {}, {segments});
    rule("blocks", {.block = 2}, {blocks});
    rule("blocks of each head", {.causal = true, .block = 5}, {blocks_of_heads});
    rule("blocks of each query", {.causal = true, .block = 5}, {blocks_of_queries});
    rule("dense", {}, {dense});
    rule("dense, one for all", {}, {shared_dense});
    rule("tiles of 1", {.causal = true}).options = tiled(with({.causal = true}, w), 1, 1);
    rule("tiles of 7 and 16", {.causal = true}, {keys}).options = tiled(with({.causal = true}, w), 7, 16);
  }
  const std::vector<Sizes> uneven{kSmall, tall, {.m = 66, .n = 65}};
  for (Weighting w : {Weighting::softmax, Weighting::sigmoid}) {
    auto capped = [&](const char* name, AttentionMask mask, std::vector<Extra> extras, double cap) {
      AttentionOptions o = with(std::move(mask), w);
      o.scale = 1.5, o.softcap = cap;
      Row& row = plain(name, std::move(o), std::move(extras), three);
      row.more = uneven, row.large = threads;
    };
    capped("soft cap", {}, {}, 0.7);
    capped("soft cap, causal, biases, row scale", {.causal = true}, {bias, relative_bias, row_scale, keys}, 2);
  }
  for (Weighting w : {Weighting::softmax, Weighting::relu2, Weighting::laplace}) {
    auto extra = [&](const char* name, std::vector<Extra> extras, Sizes sizes = {}) {
      Row& row = plain(name, {.weighting = w}, std::move(extras), sizes);
      row.more = uneven, row.large = threads;
    };
    extra("bias", {bias});
    extra("bias of keys", {bias_of_keys});
    if (w != Weighting::softmax) extra("bias of queries", {bias_of_queries});  // softmax does not feel it
    extra("relative bias", {relative_bias}, wide);
    extra("row scale", {row_scale});
    extra("row scale, both biases", {bias, relative_bias, row_scale});
    plain("two splits", {.weighting = w}, {bias, relative_bias}).large = kSplit;
    plain("two splits, causal", with({.causal = true}, w), {relative_bias}).large = kSplit;
  }
  auto sunk = [&](const char* name, AttentionMask mask, Extra extra, Sizes sizes = {}) {
    Row& row = plain(name, with(std::move(mask)), {extra}, sizes);
    row.more = uneven, row.large = threads;
  };
  sunk("sink", {}, sink);
  sunk("sink of all heads", {}, shared_sink);
  sunk("sink, causal", {.causal = true}, sink, tall);
  const std::size_t all_from = rows.size();
  for (const auto& w : weightings) {
    AttentionOptions o = with({.causal = true, .window = 3, .dilation = 2, .global = {0, 3}, .block = 3}, w.weighting);
    o.scale = 0.7;
    if (w.weighting == Weighting::softmax) o.softcap = 1.5;
    Row& row = plain("everything", tiled(o, 16, 7), {bias, relative_bias, row_scale, keys, segments, blocks_of_heads, dense}, three);
    if (w.weighting == Weighting::softmax) row.extras.push_back(sink);
    row.more = {kWide}, row.large = threads;
  }

  for (const Row& row : rows) c.push_back(case_of(Function::attention, row));
  for (std::size_t i = 0; i < rows.size(); ++i) {  // the definition, whose tiles are one
    Row row = rows[i];
    if (i < std::size(weightings)) {
      row.more = kEmpty, row.more.push_back(kSmall);
      row.large = {.m = 0};
    } else if (i < all_from) {
      continue;
    }
    c.push_back(case_of(Function::reference, row));
    c.push_back(case_of(Function::map, row));
  }

  // Dropout: key j of query row r draws word j mod 4 of block r·⌈n/4⌉ + j/4.
  for (Weighting w : {Weighting::softmax, Weighting::relu2}) {
    AttentionOptions o = with({.causal = true}, w);
    o.dropout = 0.3;
    const Row row{"dropout", o, {}, {.m = 2, .n = 3}, {kSmall, {.heads = 2, .m = 5, .n = 9, .d = 2, .e = 3}}, threads};
    OpCase x = case_of(Function::attention, row);
    x.call = [=](const In& in) {
      Rng rng;
      rng.set_state(42, 0xFFFF'FFFE);  // later blocks' numbers take two words
      return attention(in[0], in[1], in[2], o, &rng);
    };
    x.reference = [=, inputs = x.inputs](const Arrays& xs) {
      NaiveAttention r = naive(row, inputs, xs);
      const int64_t kv_heads = xs[2].shape[1], n = xs[2].shape[2], e = xs[2].shape[3], group = xs[0].shape[1] / kv_heads;
      std::fill(r.out.v.begin(), r.out.v.end(), 0.0);
      int64_t line = 0;
      each_index(r.lse.shape, [&](const Dims& i) {
        double* out = r.out.v.data() + line * e;
        for (int64_t j = 0; j < n; ++j) {
          const int64_t block = 0xFFFF'FFFE + line * ((n + 3) / 4) + j / 4;
          const auto words = philox4x32({uint32_t(block), uint32_t(block >> 32), 0, 0}, {42, 0});
          if (std::ldexp(words[static_cast<std::size_t>(j % 4)], -32) < 0.3) continue;
          const double* value = xs[2].v.data() + ((i[0] * kv_heads + i[1] / group) * n + j) * e;
          for (int64_t c = 0; c < e; ++c) out[c] += r.weights.v[static_cast<std::size_t>(line * n + j)] / 0.7 * value[c];
        }
        ++line;
      });
      return r.out;
    };
    c.push_back(x);
  }

  // Without leading dims.
  for (int rank : {2, 3}) {
    const Row row{"leading dims", with({.causal = true}), {}, {.m = 2, .n = 3}, {}, {.m = 0}};
    for (Function f : {Function::attention, Function::reference, Function::with_lse}) {
      OpCase x = case_of(f, row);
      x.variant = rank == 2 ? "rank 2" : "rank 3";
      for (Input& in : x.inputs) in.shape.erase(in.shape.begin(), in.shape.begin() + 4 - rank);
      c.push_back(x);
    }
  }

  // With the log of the divisor: of rows that see something, then not.
  const Row with_lse[] = {
      {"", {}, {}, {}, {{.m = 1, .n = 1}, {.heads = 2, .m = 3, .n = 4}, {.m = 65, .n = 64, .d = 2, .e = 4}, {.m = 0}}, kLarge},
      {"causal, grouped", with({.causal = true}), {bias}, {.heads = 2}, {kWide}},
      {"tiles of 7 and 16", tiled(with({.window = 4}), 7, 16), {relative_bias, row_scale}, three, {{.m = 30, .n = 30}}},
      {"sink, causal", with({.causal = true}), {sink}, tall, {{.heads = 2, .m = 30, .n = 20, .d = 3, .e = 2}}}};
  for (const Row& row : with_lse) c.push_back(case_of(Function::with_lse, row));
  const std::vector<Sizes> taller{{.m = 20, .n = 3, .d = 3, .e = 2}};
  for (const Row& row :
       {Row{"rows that see nothing", with({.causal = true}), {}, tall, taller}, {"no keys", {}, {}, {.n = 0}}}) {
    c.push_back(case_of(Function::with_lse, row));
    c.back().flat = "the log of 0";
  }

  // The published orders of tiles.
  const std::vector<Sizes> ragged{{.heads = 2, .m = 9, .n = 13, .d = 3, .e = 2}};
  for (TileOrder order : {TileOrder::flash1, TileOrder::flash2})
    for (auto [tile_rows, tile_cols] : {std::pair<int64_t, int64_t>{1, 1}, {2, 3}, {4, 2}, {64, 64}})
      for (const Row& row : {Row{"", {}, {}, {}, {kSmall, {.m = 0}, {.n = 0}}},
                             {"causal", with({.causal = true}), {}, {.m = 3, .n = 2}, ragged},
                             {"biases, dense", {}, {bias, relative_bias, dense}, {}, ragged}}) {
        OpCase x = case_of(Function::reference, row);
        x.op = "attention_in_order", x.variant = order == TileOrder::flash1 ? "FlashAttention" : "FlashAttention-2";
        const int64_t r = tile_rows, s = tile_cols;
        x.call = [=](const In& in) {
          return attention_in_order(in[0], in[1], in[2], order, r, s, options_of(row, in));
        };
        if (tile_rows == 1 || tile_rows == 64) x.shapes.clear();
        c.push_back(x);
      }

  // Who sees whom, as a tensor: as large as its rules need.
  for (const Row& row : rows) {
    Row masks = row;
    std::erase_if(masks.extras, [](Extra extra) { return extra < keys; });
    if (row.options.weighting != Weighting::softmax) continue;
    if (masks.extras.empty() && row.options.mask.unrestricted()) continue;
    const std::vector<Input> inputs = inputs_of(masks);
    OpCase x{.op = "visible_pairs", .variant = row.name, .inputs = inputs, .flat = "bool", .exact = true};
    x.call = [=](const In& in) {
      return visible_pairs(options_of(masks, in).mask, in[0].dim(0), in[0].dim(1), in[0].dim(2), in[1].dim(2), in[0].device());
    };
    x.reference = [=](const Arrays& xs) {
      const OpCase carrier{.inputs = inputs};
      const NaiveMask visible(options_of(masks, input_tensors(carrier, xs, f64)).mask, xs[0].shape[2], xs[1].shape[2]);
      bool by_batch = false, by_head = false;
      for (Extra extra : masks.extras) {
        by_batch |= extra == keys || extra == segments || extra == blocks_of_queries || extra == dense;
        by_head |= extra == blocks_of_heads || extra == blocks_of_queries || extra == dense;
      }
      Array y({by_batch ? xs[0].shape[0] : 1, by_head ? xs[0].shape[1] : 1, xs[0].shape[2], xs[1].shape[2]});
      each_index(y.shape, [&](const Dims& i) { y(i) = visible.sees(i[0], i[1], i[2], i[3]); });
      return y;
    };
    for (const Sizes& s : masks.more) x.shapes.push_back(dims_of(masks, s));
    if (masks.large.m > 0) x.large = dims_of(masks, masks.large);
    c.push_back(x);
    x.op = "visible_count";
    x.call = [=](const In& in) {
      return visible_count(options_of(masks, in).mask, in[0].dim(0), in[0].dim(1), in[0].dim(2), in[1].dim(2), in[0].device());
    };
    x.reference = [pairs = x.reference](const Arrays& xs) {
      const Array visible = pairs(xs)[0];
      Array y({visible.shape[0], visible.shape[1], visible.shape[2]});
      each_index(visible.shape, [&](const Dims& i) { y({i[0], i[1], i[2]}) += visible(i); });
      return Arrays{y};
    };
    c.push_back(x);
  }
}

}  // namespace sluice::testing
