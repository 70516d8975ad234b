// The forms of linear attention that linear_attention() equals, of ops with gradients.
#pragma once

#include "layer.h"

#include <sluice/layers/linear_attention/linear_attention.h>

namespace layer_check {

/// By the definition, with an n_q × n matrix of weights.
Tensor quadratic_attention(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v,
                           const sluice::LinearAttentionForm& f);

struct Recurrent {
  Tensor y;
  Tensor state;  // U, [batch, heads, f, dv], with a normaliser beside Z, [batch, heads, f, dv + 1]
};
/// One token at a time, as a stream goes on. ValueError unless causal.
Recurrent recurrent_attention(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v,
                              const sluice::LinearAttentionForm& f);

}  // namespace layer_check
