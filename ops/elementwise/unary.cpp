// Unary mathematics: each op is the map of its formula (ops/elementwise/formulas.h).
#include <sluice/ops/elementwise/elementwise.h>
#include <sluice/ops/elementwise/map.h>

namespace sluice {

namespace fm = formula;

Tensor exp(const Tensor& x) { return map(fm::Exp{}, x); }
Tensor expm1(const Tensor& x) { return map(fm::Expm1{}, x); }
Tensor log(const Tensor& x) { return map(fm::Log{}, x); }
Tensor log1p(const Tensor& x) { return map(fm::Log1p{}, x); }
Tensor sqrt(const Tensor& x) { return map(fm::Sqrt{}, x); }
Tensor rsqrt(const Tensor& x) { return map(fm::Rsqrt{}, x); }
Tensor tanh(const Tensor& x) { return map(fm::Tanh{}, x); }
Tensor sigmoid(const Tensor& x) { return map(fm::Sigmoid{}, x); }
Tensor softplus(const Tensor& x) { return map(fm::Softplus{}, x); }
Tensor erf(const Tensor& x) { return map(fm::Erf{}, x); }
Tensor normal_cdf(const Tensor& x) { return map(fm::NormalCdf{}, x); }
Tensor sin(const Tensor& x) { return map(fm::Sin{}, x); }
Tensor cos(const Tensor& x) { return map(fm::Cos{}, x); }
Tensor abs(const Tensor& x) { return map(fm::Abs{}, x); }
Tensor sign(const Tensor& x) { return map(fm::Sign{}, x); }
Tensor floor(const Tensor& x) { return map(fm::Floor{}, x); }
Tensor ceil(const Tensor& x) { return map(fm::Ceil{}, x); }
Tensor round(const Tensor& x) { return map(fm::Round{}, x); }
Tensor trunc(const Tensor& x) { return map(fm::Trunc{}, x); }

}  // namespace sluice
