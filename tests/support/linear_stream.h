// linear_attention() of given features as a layer, so that its stream can be compared with the function.
#pragma once

#include <sluice/layers/linear_attention/linear_attention.h>
#include <sluice/ops/shape/view.h>

#include <vector>

namespace sluice::testing {

/// Rows x [batch, n, heads·(2m + dv + decays)] are φ(q) | φ(k) | v | log decays of each head, where decays is 0, 1 or
/// m.
struct LinearRows {
  static constexpr const char* type = "LinearRows";
  LinearAttentionForm form;  // a log_decay that is the same for all tokens may stand here
  int64_t heads, m, dv;

  LinearRows(const Tensor& phi_q, const Tensor& v, LinearAttentionForm f)
      : form(std::move(f)), heads(v.dim(1)), m(phi_q.dim(3)), dv(v.dim(3)) {
    if (form.log_decay.defined() && !shared(form.log_decay)) form.log_decay = Tensor();
  }

  static bool shared(const Tensor& log_decay) {
    const int rank = log_decay.rank(), along = rank == 4 ? 2 : rank - 1;
    return rank == 0 || log_decay.dim(along) == 1;
  }
  static Tensor rows_of(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v, const Tensor& log_decay) {
    std::vector<Tensor> parts{phi_q, phi_k, v};
    if (log_decay.defined() && !shared(log_decay)) {
      Shape shape{v.dim(0), v.dim(1), v.dim(2)};
      if (log_decay.rank() == 4) shape.push_back(phi_k.dim(3));
      const Tensor all = expand(log_decay, shape);
      parts.push_back(log_decay.rank() == 4 ? all : unsqueeze(all, -1));
    }
    return detail::merge_heads(cat(parts, -1));
  }

  Tensor operator()(const Tensor& x, const Pass& pass = {}) const {
    Call call(*this, "linear_attention", x, x.dim(-1), pass);
    const Tensor rows = detail::split_heads(call.x, heads);
    const int64_t decays = rows.dim(3) - 2 * m - dv;
    LinearAttentionForm f = form;
    if (decays > 0) f.log_decay = narrow(rows, 3, 2 * m + dv, decays);
    if (decays == 1) f.log_decay = squeeze(f.log_decay, 3);
    return detail::merge_heads(
        detail::linear_attention(call, narrow(rows, 3, 0, m), narrow(rows, 3, m, m), narrow(rows, 3, 2 * m, dv), f));
  }
  static void visit(auto&, auto&&) {}
};

/// linear_attention() by a stream in steps of `pieces` tokens.
inline Tensor linear_attention_streamed(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v,
                                        const LinearAttentionForm& f, const std::vector<int64_t>& pieces,
                                        Stream& stream) {
  const LinearRows layer(phi_q, v, f);
  std::vector<Tensor> rows;
  for (const Tensor& x : split(LinearRows::rows_of(phi_q, phi_k, v, f.log_decay), pieces, 1))
    rows.push_back(step(layer, x, stream));
  return detail::split_heads(cat(rows, 1), v.dim(1));
}
/// The same from the beginning; of one token each, if `pieces` is empty.
inline Tensor linear_attention_streamed(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v,
                                        const LinearAttentionForm& f, std::vector<int64_t> pieces = {}) {
  if (pieces.empty()) pieces.assign(static_cast<std::size_t>(v.dim(2)), 1);
  Stream stream;
  return linear_attention_streamed(phi_q, phi_k, v, f, pieces, stream);
}

}  // namespace sluice::testing
