// What the entries of linear attention share: the parameters of feature maps, and the forms that linear_attention()
// equals, of ops with gradients.
#pragma once

#include "layer.h"

#include <sluice/layers/linear_attention/linear_attention.h>

namespace layer_check {

/// The parameters of a FeatureMap called `path`, whose options begin with `prefix`, of inputs of width `d`.
void feature_map_parameters(Layer& l, const std::string& path, const std::string& prefix, const std::string& d,
                            const std::string& when);

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
