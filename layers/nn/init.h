// Initial values of weight matrices [in, out].
#pragma once

#include <sluice/core/text/options.h>
#include <sluice/core/number/random.h>

namespace sluice {

enum class InitKind {
  normal,  // N(0, scale²); the FLASH paper and the GPT family use scale 0.02
  lecun,   // N(0, scale²/in)
  xavier,  // N(0, scale²·2/(in + out)), Glorot & Bengio 2010; a scale < 1 is DeepNorm's β (Wang et al. 2022)
  he,      // N(0, scale²·2/in), He et al. 2015
  zeros,
};
constexpr const char* choices(InitKind) { return "normal lecun xavier he zeros"; }

/// The distribution of a weight [in, out].
struct Init {
  InitKind kind = InitKind::lecun;
  double scale = 1;  // normal: the standard deviation; lecun, xavier, he: a factor of the standard deviation

  /// paper() is N(0, 0.02²), lecun() N(0, 1/in), xavier() N(0, 2/(in + out)).
  static Init paper() { return {InitKind::normal, 0.02}; }
  static Init lecun() { return {InitKind::lecun, 1}; }
  static Init xavier() { return {InitKind::xavier, 1}; }
  /// Xavier scaled by DeepNorm's factor for `layers` layers: (2·layers)^(−1/2), for LAMB with α = 1
  /// (Su, "Training a 1000-layer Transformer", 2022).
  static Init deepnorm(int64_t layers);

  static void describe(auto& o, auto& f) {
    f.training("kind", o.kind, "distribution of initial weights");
    f.training("scale", o.scale, at_least(0), "factor of their standard deviation");
  }
};

/// The last options of most layers: the initial values and the dtype of their parameters.
void describe_parameters(auto& o, auto& f) {
  f.nested("init_", o.init);
  f.training("dtype", o.dtype, "of the parameters");
}

/// The dtype of parameters that a layer of `dtype` does not round to bf16: exponents of decays, whose errors add up
/// over all tokens, and biases that decide between near scores.
inline DType exact(DType dtype) { return dtype == bf16 ? f32 : dtype; }
namespace detail {
/// Device and dtype of a new weight: on the CPU, or on meta while a MetaInit (layers/nn/meta_init.h) lives.
TensorOptions initial(DType dtype);
}  // namespace detail
/// A trained weight of shape [in, out]. Throws ShapeError unless in >= 1 and out >= 1.
Tensor init_weight(int64_t in, int64_t out, Init init, Rng& rng, DType dtype = f32);
/// The weight [width, channels] of a convolution of each channel by itself. Its fan-in and fan-out are `width`.
Tensor init_depthwise(int64_t width, int64_t channels, Init init, Rng& rng, DType dtype = f32);
/// `count` weights of shape [in, out], drawn one after the other: [count, in, out].
Tensor init_weights(int64_t count, int64_t in, int64_t out, Init init, Rng& rng, DType dtype = f32);
/// A trained vector [n] whose elements are all `value`.
Tensor init_vector(int64_t n, double value, DType dtype = f32);
/// A trained vector [n], the logarithms of independent values from U(low, high): A_log of the decays e^{−Δ·e^{A_log}}.
/// Its dtype is exact(dtype).
Tensor init_a_log(int64_t n, double low, double high, Rng& rng, DType dtype = f32);
/// A trained vector [n], the bias in Δ = softplus(z + dt_bias). At z = 0 the logarithms of Δ are independent and
/// uniform between those of 0.001 and 0.1, as in the code of Mamba (Gu & Dao 2023). Its dtype is exact(dtype).
Tensor init_dt_bias(int64_t n, Rng& rng, DType dtype = f32);
/// A trained tensor with independent N(0, std²) values.
Tensor init_normal(const Shape& shape, double std, Rng& rng, DType dtype = f32);

}  // namespace sluice
