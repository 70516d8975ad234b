// Every row with one input of too few or too many dims, with one undefined, and with one on another device. An op that
// takes it may; else its error names the op that was called.
#include "support/catch.h"
#include "support/op_cases.h"

#include <sluice/core/text/print.h>
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/index/sampling.h>
#include <sluice/ops/rows/rope.h>
#include <sluice/ops/shape/create.h>
#include <sluice/ops/shape/view.h>

#include <iterator>
#include <set>
#include <sstream>

using namespace sluice;
using namespace sluice::testing;

namespace {

using Ops = std::set<std::string>;
Ops ops_in(const char* list) {
  std::istringstream words(list);
  return {std::istream_iterator<std::string>(words), {}};
}

/// Ops that must refuse a scalar, and 8 dims, as their first input.
const Ops kRefuseScalar = ops_in(
    "attention attention_in_order attention_map attention_reference attention_with_lse bce_with_logits block_maxima "
    "block_means cat causal_conv1d choose_blocks chunk delta_rule delta_scan delta_values diagonal einsum embedding "
    "fold gather huber_loss index_add index_keys index_mask index_scores index_select kl_div l1_loss layer_norm linear "
    "linear_scan linear_scan_carry linear_scan_state matmul merge_attention mse_loss narrow nll_loss outer pad permute "
    "rearrange relative_alibi relative_matrix relative_rope relative_t5 relative_toeplitz repeat repeat_interleave "
    "rms_norm roll rope rope_at scale_norm scatter scatter_add select slice split stack toeplitz topk topk_mask tril "
    "triu unbind unflatten unfold");
const Ops kRefuseMany = ops_in(
    "attention attention_in_order attention_map attention_reference attention_with_lse bce_with_logits block_maxima "
    "block_means choose_blocks cross_entropy delta_rule delta_scan delta_values embedding expand fold gather "
    "huber_loss "
    "index_add index_keys index_mask index_scores kl_div l1_loss linear_scan linear_scan_carry linear_scan_state "
    "merge_attention mse_loss narrow nll_loss one_hot outer permute relative_alibi relative_matrix relative_rope "
    "relative_t5 relative_toeplitz repeat repeat_interleave scatter scatter_add stack toeplitz unflatten unfold "
    "unsqueeze");
/// Rows whose call itself asks its inputs for their dims.
const Ops kAskInCall = ops_in("visible_count visible_pairs cross_entropy multinomial ones_like zeros_like");

/// x as a scalar of its first value, or with dims of size 1 in front, up to the most that a tensor has.
Tensor with_rank(int rank, const Tensor& x) {
  if (rank == 0) return reshape(narrow(reshape(x, {x.numel()}), 0, 0, 1), {});
  Tensor y = x;
  while (y.rank() < rank) y = unsqueeze(y, 0);
  return y;
}

/// The error of the call; "" if it throws none.
std::string error_of(const std::function<void()>& call) {
  try {
    call();
    return "";
  } catch (const Error& e) { return e.what(); }
}
/// The op that the error of the call names; "" if it throws none.
std::string refused_by(const OpCase& row, const In& xs) {
  const std::string text = error_of([&] { row.call(xs); });
  return text.substr(0, text.find(':'));
}

/// Ops whose rows compute with an input, or ask it, before they call the op; of other ops, such variants.
const Ops kComputeInCall = ops_in(
    "activate alibi_slopes arange eye full isfinite isinf isnan linspace multinomial ones ones_like rope_at "
    "visible_count visible_pairs zeros zeros_like");
const std::set<std::string> kComputingVariants{"i32",
                                               "i64",
                                               "many classes",
                                               "many classes, smoothing",
                                               "masked by -inf, some rows whole",
                                               "of a transpose",
                                               "of a transpose copies",
                                               "of i32",
                                               "of i64",
                                               "p = 0 counts for nothing",
                                               "parts that see nothing",
                                               "tensor / power of two",
                                               "a·aᵀ",
                                               "aᵀ·bᵀ"};

}  // namespace

TEST_CASE("op cases: an input of too few or too many dims is refused in the op's name", "[ops]") {
  for (const auto& [rank, must] : {std::pair<int, const Ops&>(0, kRefuseScalar), {kMaxRank, kRefuseMany}}) {
    Ops left = must;
    for_each_row([&](const OpCase& row) {
      const In xs = input_tensors(row, input_values(row, {}), f32);
      for (std::size_t i = 0; i < xs.size(); ++i) {
        if (xs[i].numel() == 0 || xs[i].rank() == rank) continue;
        In changed = xs;
        changed[i] = with_rank(rank, xs[i]);
        const std::string op = refused_by(row, changed);
        INFO(row.name() << ": input " << i << " is " << str(changed[i]) << " instead of " << str(xs[i]));
        const bool refuses = i == 0 && must.contains(row.op);
        if (refuses) left.erase(row.op);
        if (refuses || !kAskInCall.contains(row.op)) CHECK((op == row.op || (op.empty() && !refuses)));
      }
    });
    INFO(detail::joined(left));
    CHECK(left.empty());  // else they have no row
  }
}

TEST_CASE("op cases: an undefined input is refused in the op's name", "[ops]") {
  std::size_t refused = 0;
  for_each_row([&](const OpCase& row) {
    if (kComputeInCall.contains(row.op) || kComputingVariants.contains(row.variant)) return;
    const In xs = input_tensors(row, input_values(row, {}), f32);
    for (std::size_t i = 0; i < xs.size(); ++i) {
      In changed = xs;
      changed[i] = Tensor();
      const std::string text = error_of([&] { row.call(changed); });
      INFO(row.name() << ": input " << i << ": " << text);
      const bool named = text.starts_with(std::string(row.op) + ": ");
      CHECK((named || (i > 0 && text.empty())));  // the first input is needed; others may be optional
      refused += named && text.find("undefined") != text.npos;
    }
  });
  CHECK(refused > 1500);

  const Tensor none;
  Rng rng(1);
  CHECK_THROWS_WITH(isnan(none), StartsWith("isnan: x is undefined"));
  CHECK_THROWS_WITH(isinf(none), StartsWith("isinf: x is undefined"));
  CHECK_THROWS_WITH(zeros_like(none), StartsWith("zeros_like: x is undefined"));
  CHECK_THROWS_WITH(ones_like(none), StartsWith("ones_like: x is undefined"));
  CHECK_THROWS_WITH(multinomial(none, 1, rng), StartsWith("multinomial: "));
  CHECK_THROWS_WITH(rope_at(none, arange(3)), StartsWith("rope_at: x is undefined"));
  CHECK_THROWS_WITH(allclose(ones({2}), none), StartsWith("allclose: b is undefined"));
}

TEST_CASE("op cases: an input on another device is refused in the op's name", "[ops][meta]") {
  std::size_t refused = 0;
  for_each_row([&](const OpCase& row) {
    if (kComputeInCall.contains(row.op) || kComputingVariants.contains(row.variant)) return;
    const In xs = input_tensors(row, input_values(row, {}), f32);
    for (std::size_t i = 0; i < xs.size() && xs.size() > 1; ++i) {
      In changed = xs;
      changed[i] = to(xs[i], meta);
      const std::string text = error_of([&] { row.call(changed); });
      INFO(row.name() << ": input " << i << ": " << text);
      CHECK((text.empty() || text.starts_with(std::string(row.op) + ": ")));
      refused += text.find("operands on ") != text.npos;
    }
  });
  CHECK(refused > 1500);
}
