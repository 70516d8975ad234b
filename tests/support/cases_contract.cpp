// Rows: ops/matmul/einsum.h, ops/shape/rearrange.h, ops/rows/rope.h.
#include "support/op_cases.h"

#include <sluice/ops/shape/create.h>
#include <sluice/ops/matmul/einsum.h>
#include <sluice/ops/shape/rearrange.h>
#include <sluice/ops/rows/rope.h>

#include <algorithm>
#include <cmath>
#include <map>

// clang-format off
namespace sluice::testing {

namespace {

/// Sums over every index of every letter: the definition itself. No ellipsis; sizes of 1 broadcast.
Reference ref_einsum(const std::string& equation) {
  return [equation](const Arrays& xs) {
    const std::size_t arrow = equation.find("->");
    const std::string right = equation.substr(arrow + 2);
    std::vector<std::string> left(1);
    for (char l : equation.substr(0, arrow)) {
      if (l == ',') left.emplace_back();
      else left.back() += l;
    }
    std::map<char, int64_t> size;
    for (std::size_t k = 0; k < xs.size(); ++k)
      for (std::size_t d = 0; d < left[k].size(); ++d) {
        int64_t& s = size.try_emplace(left[k][d], 1).first->second;
        s = s == 1 ? xs[k].shape[d] : s;
      }
    std::string letters;
    Dims all, shape;
    for (auto [letter, n] : size) letters += letter, all.push_back(n);
    for (char l : right) shape.push_back(size[l]);
    auto entry = [&](const std::string& which, const Dims& i) {
      Dims out;
      for (char l : which) out.push_back(i[letters.find(l)]);
      return out;
    };
    Array y(shape);
    each_index(all, [&](const Dims& i) {
      double product = 1;
      for (std::size_t k = 0; k < xs.size(); ++k) product *= xs[k].stretched(entry(left[k], i));
      y(entry(right, i)) += product;
    });
    return y;
  };
}

Reference ref_rope(RopeOptions o, std::vector<int64_t> positions = {}) {
  return [=](const Arrays& xs) {
    const Array& x = xs[0];
    const int64_t d = x.shape.back(), dim = o.rot_dim ? o.rot_dim : d, half = dim / 2;
    Array y = x;
    each_index(x.shape, [&](const Dims& i) {
      const int64_t ch = i.back(), row = i.end()[-2];
      if (ch >= dim) return;
      const bool split = o.pairing == RopePairing::half;
      const int64_t pair = split ? ch % half : ch / 2;
      const bool second = split ? ch >= half : ch % 2 == 1;
      Dims other = i;
      other.back() += (second ? -1 : 1) * (split ? half : 1);
      const int64_t p = positions.empty() ? row : positions[static_cast<std::size_t>(row)];
      const double at = static_cast<double>(p + o.offset);
      const double angle = o.frequencies.empty() ? at / std::pow(o.base, static_cast<double>(pair) / static_cast<double>(half))
                                                 : at * o.frequencies[static_cast<std::size_t>(pair)];
      double by = o.factor;
      if (o.xpos != 0)
        by *= std::pow((2 * static_cast<double>(pair) + 0.4 * static_cast<double>(dim)) / (1.4 * static_cast<double>(dim)), at / o.xpos);
      y(i) = by * (x(i) * std::cos(angle) + (second ? 1 : -1) * x(other) * std::sin(angle));
    });
    return y;
  };
}

double ref_t5_bucket(int64_t rel, T5BucketOptions o) {
  int64_t count = o.buckets, bucket = 0, n = -rel;
  if (o.causal) n = std::max<int64_t>(n, 0);
  else {
    count /= 2;
    if (n < 0) bucket = count, n = -n;
  }
  const int64_t exact = count / 2;
  if (n < exact) return static_cast<double>(bucket + n);
  const double share = std::log(static_cast<double>(n) / static_cast<double>(exact)) / std::log(static_cast<double>(o.max_distance) / static_cast<double>(exact));
  const auto far = exact + static_cast<int64_t>(share * static_cast<double>(count - exact));
  return static_cast<double>(bucket + std::min(far, count - 1));
}

}  // namespace

void add_contract_cases(Cases& c) {
  auto es = [&](const char* equation, std::vector<Dims> shapes, const char* spelt_out = nullptr, std::vector<Dims> large = {}) {
    std::vector<Input> in;
    for (const Dims& s : shapes) in.push_back(real(s));
    c.push_back({.op = "einsum", .variant = equation, .inputs = in, .call = [equation](const In& x) { return einsum(equation, x); },
                 .reference = ref_einsum(spelt_out ? spelt_out : equation), .ulps = 16, .large = large, .bitwise = false});
  };
  es("ij,jk->ik", {{2, 3}, {3, 4}}, nullptr, {{35, 33}, {33, 17}});
  es("ij,jk", {{2, 3}, {3, 4}}, "ij,jk->ik");
  es("bqhd,bkhd->bhqk", {{2, 3, 2, 2}, {2, 2, 2, 2}}, nullptr, {{2, 9, 3, 5}, {2, 11, 3, 5}});
  es("bhqk,bkhd->bqhd", {{1, 2, 3, 2}, {1, 2, 2, 2}});
  es("ij->ji", {{2, 3}});
  es("ij->", {{2, 3}});
  es("ij->j", {{2, 3}});
  es("ii->i", {{3, 3}});
  es("ii->", {{3, 3}});
  es("iji->j", {{2, 3, 2}});
  es("i,j->ij", {{3}, {4}});
  es("i,i->", {{5}, {5}});
  es("ij,ij->ij", {{2, 3}, {2, 3}});
  es("ij,j,jk->ik", {{2, 3}, {3}, {3, 2}});
  es("ab,cb,cd->ad", {{2, 3}, {2, 3}, {2, 2}});
  es("...ij,...jk->...ik", {{2, 2, 3}, {2, 3, 2}}, "bij,bjk->bik");
  es("...ij,jk->...ik", {{2, 2, 3}, {3, 2}}, "bij,jk->bik");
  es("b...i,b...i->b...", {{2, 2, 2}, {2, 2, 2}}, "bxi,bxi->bx");
  es("ij,jk->ik", {{2, 0}, {0, 3}});
  es("ij,jk->ik", {{0, 2}, {2, 3}});
  es("i,->i", {{3}, {}});
  c.push_back({.op = "einsum", .variant = "an operand twice", .inputs = {real({2, 3})},
               .call = [](const In& x) { return einsum("ij,kj->ik", {x[0], x[0]}); },
               .reference = [](const Arrays& x) { return ref_einsum("ij,kj->ik")({x[0], x[0]}); }, .ulps = 16, .bitwise = false});

  auto moved = [&](const char* pattern, Dims shape, std::function<Outputs(const In&)> call, Dims out, std::function<Dims(const Dims&)> from) {
    c.push_back({.op = "rearrange", .variant = pattern, .inputs = {real(shape)}, .call = std::move(call),
                 .reference = picked(out, std::move(from)), .exact = true});
  };
  moved("b n (h d) -> b h n d", {2, 3, 4}, [](const In& x) { return rearrange("b n (h d) -> b h n d", x[0], {{"h", 2}}); },
        {2, 2, 3, 2}, [](const Dims& i) { return Dims{i[0], i[2], i[1] * 2 + i[3]}; });
  moved("b h n d -> b n (h d)", {2, 2, 3, 2}, [](const In& x) { return rearrange("b h n d -> b n (h d)", x[0]); },
        {2, 3, 4}, [](const Dims& i) { return Dims{i[0], i[2] / 2, i[1], i[2] % 2}; });
  moved("b ... c -> b (...) c", {2, 2, 3, 2}, [](const In& x) { return rearrange("b ... c -> b (...) c", x[0]); },
        {2, 6, 2}, [](const Dims& i) { return Dims{i[0], i[1] / 3, i[1] % 3, i[2]}; });
  moved("b 1 d -> b d", {2, 1, 3}, [](const In& x) { return rearrange("b 1 d -> b d", x[0]); }, {2, 3},
        [](const Dims& i) { return Dims{i[0], 0, i[1]}; });
  moved("b d -> b h d", {2, 3}, [](const In& x) { return rearrange("b d -> b h d", x[0], {{"h", 2}}); }, {2, 2, 3},
        [](const Dims& i) { return Dims{i[0], i[2]}; });
  moved("i j -> j i", {2, 3}, [](const In& x) { return rearrange("i j -> j i", x[0]); }, {3, 2},
        [](const Dims& i) { return Dims{i[1], i[0]}; });
  moved("(a b) c -> a (c b)", {6, 2}, [](const In& x) { return rearrange("(a b) c -> a (c b)", x[0], {{"a", 2}}); }, {2, 6},
        [](const Dims& i) { return Dims{i[0] * 3 + i[1] % 3, i[1] / 3}; });

  struct RopeChoice {
    const char* name;
    Dims shape;
    RopeOptions options;
  };
  for (const RopeChoice& k : {RopeChoice{"half", {2, 3, 4}, {}}, {"interleaved", {2, 3, 4}, {.pairing = RopePairing::interleaved}},
                              {"part of the channels", {3, 6}, {.rot_dim = 4}},
                              {"part, interleaved", {3, 5}, {.pairing = RopePairing::interleaved, .rot_dim = 2}},
                              {"offset, another base", {3, 4}, {.base = 100, .offset = 7}},
                              {"frequencies, factor", {2, 3, 6}, {.rot_dim = 4, .frequencies = {0.3, -2}, .factor = 1.5}},
                              {"xPos of queries", {2, 3, 4}, {.xpos = 8}},
                              {"xPos of keys", {3, 4}, RopeOptions{.pairing = RopePairing::interleaved, .offset = 3, .xpos = 5}.of_keys()},
                              {"two channels", {3, 2}, {}}})
    c.push_back({.op = "rope", .variant = k.name, .inputs = {real(k.shape)}, .call = [o = k.options](const In& x) { return rope(x[0], o); },
                 .reference = ref_rope(k.options), .ulps = 8,
                 .shapes = k.shape == Dims{3, 2} ? std::vector<std::vector<Dims>>{{{0, 2}}, {{1, 1, 1, 2}}} : std::vector<std::vector<Dims>>{},
                 .large = k.shape.size() == 3 ? std::vector<Dims>{{3, 130, 66}} : std::vector<Dims>{{260, 66}}});
  c.push_back({.op = "rope_at", .variant = "positions", .inputs = {real({2, 3, 4})},
               .call = [](const In& x) { return rope_at(x[0], to(Tensor::from(std::vector<int64_t>{5, 0, 11}), x[0].device()), {.offset = 2}); },
               .reference = ref_rope({.offset = 2}, {5, 0, 11}), .ulps = 8});
  c.push_back({.op = "rope_at", .variant = "positions, xPos", .inputs = {real({2, 3, 4})},
               .call = [](const In& x) { return rope_at(x[0], to(Tensor::from(std::vector<int64_t>{5, 0, -4}), x[0].device()), {.factor = 0.5, .xpos = 4}); },
               .reference = ref_rope({.factor = 0.5, .xpos = 4}, {5, 0, -4}), .ulps = 8});

  struct ToeplitzChoice {
    const char* name;
    int64_t table, n, m, offset;
  };
  for (const ToeplitzChoice& k : {ToeplitzChoice{"whole", 9, 5, 5, 0}, {"wide", 9, 2, 5, 0}, {"tall", 9, 5, 2, 0},
                                  {"later rows", 9, 2, 4, 3}, {"one", 1, 1, 1, 0}, {"nothing", 9, 0, 3, 0}})
    c.push_back({.op = "toeplitz", .variant = k.name, .inputs = {real({k.table})},
                 .call = [k](const In& x) { return toeplitz(x[0], k.n, k.m, k.offset); },
                 .reference = picked({k.n, k.m}, [k](const Dims& i) { return Dims{(k.table - 1) / 2 + i[1] - (i[0] + k.offset)}; }),
                 .exact = true});
  for (bool causal : {false, true})
    for (int64_t offset : {0, 9}) {
      const T5BucketOptions o{.causal = causal, .buckets = 8, .max_distance = 20};
      c.push_back({.op = "t5_buckets", .variant = causal ? "causal" : "both ways",
                   .call = [=](const In&) { return t5_buckets(12, 30, o, offset); },
                   .reference = [=](const Arrays&) {
                     Array y({12, 30});
                     each_index(y.shape, [&](const Dims& i) { y(i) = ref_t5_bucket(i[1] - i[0] - offset, o); });
                     return y;
                   },
                   .flat = "integers", .exact = true});
    }
}

}  // namespace sluice::testing
