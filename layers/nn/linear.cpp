#include <sluice/layers/nn/linear.h>

#include <sluice/layers/nn/pass.h>

namespace sluice {

void detail::check_made(const char* layer, int64_t dim) {
  if (dim == 0)
    fail<ValueError>(layer, ": this layer is default-constructed and has no weights; make it from its options");
}

Linear::Linear(LinearOptions o, Rng& rng) : options(o) {
  check_options("linear", o);
  weight = init_weight(o.in, o.out, o.init, rng, o.dtype);
  if (o.bias) bias = init_vector(o.out, 0, o.dtype);
}

Embedding::Embedding(EmbeddingOptions o, Rng& rng) : options(o) {
  check_options("embedding", o);
  weight = init_normal({o.count, o.dim}, o.std, rng, o.dtype);
}

Tensor Dropout::operator()(const Tensor& x, const Pass& pass) const { return (*this)(x, pass.rng); }

}  // namespace sluice
