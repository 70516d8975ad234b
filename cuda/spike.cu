// Proof that the one text of every formula serves the GPU too: no kernel here is used yet. The two SwiGLU
// kernels show what a fused elementwise kernel will look like; a test reads their PTX.
#include <sluice/ops/formulas.h>

namespace sluice::spike {

extern "C" __global__ void swiglu_forward(const float* x, const float* g, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = formula::SwiGlu{}(Value<float>{x[i], {}}, Value<float>{g[i], {}}).v;
}

extern "C" __global__ void swiglu_backward(const float* x, const float* g, const float* dy, float* dx, float* dg, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  using D = Dual<float, 2>;
  const D y = formula::SwiGlu{}(D::variable(x[i], 0, 1.0f), D::variable(g[i], 1, 1.0f));
  dx[i] = dy[i] * y.d[0];
  dg[i] = dy[i] * y.d[1];
}

/// Value and all partial derivatives of a formula at x.
template <class F, class... X>
__device__ void evaluate(const F& f, float* out, X... x) {
  constexpr std::size_t n = sizeof...(X);
  *out++ = f(Value<float>{x, {}}...).v;
  std::size_t i = 0;
  const Dual<float, n> y = f(Dual<float, n>::variable(x, i++, 1.0f)...);
  for (std::size_t k = 0; k < n; ++k) *out++ = y.d[k];
}
template <class... F> __global__ void unary(const float* x, float* out, F... f) { (evaluate(f, out, x[0]), ...); }
template <class... F> __global__ void binary(const float* x, float* out, F... f) { (evaluate(f, out, x[0], x[1]), ...); }
template <class... F> __global__ void ternary(const float* x, float* out, F... f) { (evaluate(f, out, x[0], x[1], x[2]), ...); }

using namespace formula;

template __global__ void unary<>(const float*, float*, Neg, Scale, AddScalar, SubFrom, DivInto, PowScalar, Square, Clamp);
template __global__ void unary<>(const float*, float*, Exp, Expm1, Log, Log1p, Sqrt, Rsqrt, Tanh, Sigmoid, Softplus, Erf, NormalCdf);
template __global__ void unary<>(const float*, float*, Sin, Cos, Abs, Sign, Floor, Ceil, Round, Trunc);
template __global__ void unary<>(const float*, float*, Identity, Relu, Relu2, Elu, Elu1, Silu, Gelu, GeluTanh, Laplace, LeakyRelu, NsSigmoid);
template __global__ void binary<>(const float*, float*, Add, Sub, Mul, Div, Pow, Maximum, Minimum);
template __global__ void binary<>(const float*, float*, formula::Glu, ReGlu, GeGlu, SwiGlu, Bilinear, SiluGlu);
template __global__ void binary<>(const float*, float*, MaskedFill, SquaredError, BceWithLogits, KlTerm);
template __global__ void ternary<>(const float*, float*, Where, Lerp, ScaleOffset);

}  // namespace sluice::spike
