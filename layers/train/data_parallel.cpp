#include <sluice/layers/train/data_parallel.h>

#include <sluice/autograd/engine.h>
#include <sluice/core/node.h>
#include <sluice/core/operands.h>
#include <sluice/ops/basic.h>
#include <sluice/parallel/sequence.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

namespace sluice {

struct DataParallel::Parameter {
  std::string name;
  Tensor tensor;
  std::size_t bucket = 0;
  int64_t offset = 0, flag = 0;  // positions of gradient and flag in the bucket
  bool ready = false;
};

/// Gradients that are sent together: their values, then a flag for each, 1 if there is a gradient and 0 if not.
struct DataParallel::Bucket {
  Tensor values;
  std::vector<std::size_t> parameters;
  std::size_t missing = 0;
  Pending sum;
};

namespace {

/// One line for each tensor, with the properties that must be the same on all ranks.
std::string text_of(const std::vector<NamedTensor>& state) {
  std::string text;
  for (const NamedTensor& t : state)
    text += str(t.name, ' ', t.tensor.dtype(), t.tensor, t.tensor.requires_grad() ? " trained\n" : "\n");
  return text;
}

Tensor part(const Tensor& values, int64_t start, const Tensor& like) {
  return reshape(narrow(values, 0, start, like.numel()), like.shape());
}

}  // namespace

DataParallel::DataParallel(std::vector<NamedTensor> state, const Communicator& ranks, DataParallelOptions options)
    : ranks_(ranks), options_(options) {
  if (options.bucket_bytes < 1)
    fail<ValueError>("data_parallel: bucket_bytes must be above 0 — got ", options.bucket_bytes);
  std::set<const TensorImpl*> seen;  // a tied tensor has several names
  for (const NamedTensor& t : state) {
    if (!seen.insert(t.tensor.ref().get()).second) continue;
    if (t.tensor.requires_grad()) parameters_.push_back({t.name, t.tensor});
    else frozen_.push_back(t);
  }
  if (ranks.size() == 1) return;
  ranks.check_same("model", text_of(state));
  own_ = ranks.split(0);
  NoGrad guard;
  for (NamedTensor& t : state) copy_(t.tensor, broadcast(t.tensor, 0, ranks));
  std::vector<int64_t> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), 0);  // the gradients of the last layers arrive first
  build(order);
}

DataParallel::~DataParallel() = default;

void DataParallel::build(const std::vector<int64_t>& order) {
  buckets_.clear();
  using Kind = std::tuple<DType, DeviceKind, int>;
  std::map<Kind, std::vector<std::size_t>> open;
  std::map<Kind, int64_t> bytes;
  const auto close = [&](Kind kind) {
    Bucket b;
    b.parameters = std::move(open[kind]);
    int64_t size = 0;
    for (const std::size_t i : b.parameters) {
      parameters_[i].bucket = buckets_.size(), parameters_[i].offset = size;
      size += parameters_[i].tensor.numel();
    }
    for (const std::size_t i : b.parameters) parameters_[i].flag = size++;
    b.values = empty({size}, parameters_[b.parameters[0]].tensor.options());
    buckets_.push_back(std::move(b));
    open[kind].clear(), bytes[kind] = 0;
  };
  for (const int64_t i : order) {
    const Tensor& p = parameters_[static_cast<std::size_t>(i)].tensor;
    const Kind kind{p.dtype(), p.device().kind, p.device().index};
    open[kind].push_back(static_cast<std::size_t>(i));
    if ((bytes[kind] += p.numel() * size_of(p.dtype())) >= options_.bucket_bytes) close(kind);
  }
  for (auto& [kind, indices] : open)
    if (!indices.empty()) close(kind);
}

/// Copies a complete gradient into its bucket.
void DataParallel::collect(std::size_t index) {
  Parameter& p = parameters_[index];
  if (p.ready) return;
  p.ready = true;
  Bucket& b = buckets_[p.bucket];
  Tensor place = part(b.values, p.offset, p.tensor), flag = narrow(b.values, 0, p.flag, 1);
  const Tensor& g = p.tensor.grad();
  if (g.defined()) {
    if (g.dtype() != p.tensor.dtype())
      fail<DTypeError>("data_parallel: parameter '", p.name, "' is ", p.tensor.dtype(), ", its gradient ", g.dtype());
    detail::copy_elements(g.detach(), place);
  } else {
    fill_(place, 0);
  }
  fill_(flag, g.defined() ? 1 : 0);
  --b.missing;
}

/// Sends complete buckets, or all, in their order, which is the same on all ranks.
void DataParallel::launch(bool all) {
  while (launched_ < buckets_.size() && (all || buckets_[launched_].missing == 0)) {
    Bucket& b = buckets_[launched_++];
    b.sum = start_all_reduce(b.values, own_);
  }
}

void DataParallel::finish(double scale) {
  for (Bucket& b : buckets_) {
    b.sum.wait();
    const auto count = static_cast<int64_t>(b.parameters.size()), flags = b.values.numel() - count;
    const Tensor reached = to(to(narrow(b.values, 0, flags, count), cpu), f64);
    for (const std::size_t i : b.parameters) {
      Parameter& p = parameters_[i];
      if (!(reached.data<double>()[p.flag - flags] > 0)) continue;
      Tensor g = p.tensor.grad();
      if (!g.defined()) p.tensor.set_grad(g = empty_like(p.tensor.detach()));
      Tensor sum = part(b.values, p.offset, p.tensor);
      scale_(sum, scale);
      detail::copy_elements(sum, g);
      g.bump_version();
    }
  }
}

static void check_weight(double weight) {
  if (!(weight >= 0) || !std::isfinite(weight)) fail<ValueError>("data_parallel: a weight must be >= 0 — got ", weight);
}

/// The weight in the dtype of the loss, as it multiplies the gradients. Their sum must be divided by the same number.
static double rounded(double weight, const Tensor& loss) {
  return loss.defined() ? full({}, weight, {loss.dtype()}).item() : weight;
}

static void check_loss(const Tensor& loss, double weight) {
  check_weight(weight);
  if (weight > 0 && !loss.defined()) fail<ValueError>("data_parallel: the loss of weight ", weight, " is undefined");
  if (const double used = rounded(weight, loss); !std::isfinite(used) || (used == 0 && weight > 0))
    fail<ValueError>("data_parallel: the weight ", weight, " is ", used, " in ", loss.dtype(), ", the loss's dtype");
}

/// Whether this rank runs a backward pass. It also does so for a loss of weight 0, because the sequence may be split
/// over ranks, whose backward passes exchange; but not for the NaN of a mean over nothing.
static bool walks(const Tensor& loss, double weight) {
  if (weight > 0) return true;
  if (!loss.defined() || !loss.requires_grad() || loss.numel() != 1) return false;
  return in_sequence() || std::isfinite(loss.item());
}

/// Empties the buckets. Builds them again for parameters that were converted or moved.
void DataParallel::prepare() {
  // Sums of a pass that failed may still read the buckets.
  for (Bucket& b : buckets_) {
    try {
      b.sum.wait();
    } catch (const CommunicationError&) {}
  }
  const auto converted = [&](const Parameter& p) {
    const Tensor& values = buckets_[p.bucket].values;
    return values.dtype() != p.tensor.dtype() || values.device() != p.tensor.device();
  };
  if (!buckets_.empty() && std::any_of(parameters_.begin(), parameters_.end(), converted)) {
    std::vector<int64_t> order;
    for (const Bucket& b : buckets_) order.insert(order.end(), b.parameters.begin(), b.parameters.end());
    build(order);
  }
  for (Parameter& p : parameters_) p.ready = false;
  for (Bucket& b : buckets_) b.missing = b.parameters.size();
  launched_ = 0;
  if (!ordered_) arrived_.clear();
}

/// The first parameter that has a gradient.
static auto first_reached(const auto& parameters) {
  return std::ranges::find_if(parameters, [](const auto& p) { return p.tensor.grad().defined(); });
}

/// Throws unless gradients are clear or of accumulate(). An older gradient would be averaged once more, with this
/// rank's weight, and the result would depend on the number of ranks.
void DataParallel::check_clear() {
  const auto found = first_reached(parameters_);
  const bool clear = found == parameters_.end();
  if (clear && reached_) weight_.reset();  // zero_grad() took back what accumulate() had added
  if (!clear && !weight_)
    fail<ValueError>("data_parallel: parameter '", found->name, "' has a gradient already; call zero_grad() before, ",
                     "and accumulate() for all but the last of several losses");
}

/// The backward pass of this rank, which sends each bucket as soon as it is complete.
void DataParallel::walk(const Tensor& loss, double weight) {
  const Tensor seed = full(loss.shape(), weight, loss.options());
  if (buckets_.empty()) return sluice::backward(loss, seed);
  std::map<const Node*, std::size_t> index;
  for (std::size_t i = 0; i < parameters_.size(); ++i) index[parameters_[i].tensor.impl().history.get()] = i;
  detail::backward(loss, seed, {}, [&](Leaf& leaf) {
    const auto found = index.find(&leaf);
    if (found == index.end()) return;
    if (!ordered_) arrived_.push_back(static_cast<int64_t>(found->second));
    NoGrad guard;
    collect(found->second);
    if (options_.overlap) launch(false);
  });
}

/// From the second pass on buckets follow the order in which gradients arrived on rank 0.
void DataParallel::follow_arrivals() {
  std::vector<bool> seen(parameters_.size());
  for (const int64_t i : arrived_) seen[static_cast<std::size_t>(i)] = true;
  for (std::size_t i = parameters_.size(); i-- > 0;)
    if (!seen[i]) arrived_.push_back(static_cast<int64_t>(i));
  build(broadcast(Tensor::from(arrived_), 0, ranks_).to_vector<int64_t>());
  ordered_ = true;
}

void DataParallel::backward(const Tensor& loss, double weight) {
  check_loss(loss, weight);
  for (const NamedTensor& t : frozen_)
    if (t.tensor.requires_grad())
      fail<ValueError>("data_parallel: '", t.name, "' was frozen when this was made; make it again after thawing");
  check_clear();
  if (ranks_.size() == 1 && !weight_ && weight > 0) return sluice::backward(loss);
  const bool here = walks(loss, weight);
  if (here && loss.numel() != 1) fail("data_parallel: the loss must have one element — got ", loss);
  prepare();
  weight = rounded(weight, loss);
  Tensor total = full({}, std::exchange(weight_, std::nullopt).value_or(0) + weight, {f64});
  Pending weights = start_all_reduce(total, own_);
  if (here) walk(loss, weight);
  NoGrad guard;
  if (!buckets_.empty())  // also those that this rank's loss does not reach
    for (std::size_t i = 0; i < parameters_.size(); ++i) collect(i);
  launch(true);
  weights.wait();
  const double sum = total.item();
  if (!(sum > 0)) {
    for (Bucket& b : buckets_) b.sum.wait();
    for (Parameter& p : parameters_) p.tensor.zero_grad();  // of the losses of weight 0
    fail<ValueError>("data_parallel: all ranks' weights are 0");
  }
  finish(1 / sum);
  if (buckets_.empty()) {  // one rank, after accumulate()
    for (Parameter& p : parameters_)
      if (Tensor g = p.tensor.grad(); g.defined()) scale_(g, 1 / sum);
  } else if (!ordered_) {
    follow_arrivals();
  }
}

void DataParallel::accumulate(const Tensor& loss, double weight) {
  check_loss(loss, weight);
  if (!walks(loss, weight)) return;
  check_clear();
  weight = rounded(weight, loss);
  sluice::backward(loss, full(loss.shape(), weight, loss.options()));
  weight_ = weight_.value_or(0) + weight;
  reached_ = first_reached(parameters_) != parameters_.end();
}

double DataParallel::mean(double value, double weight) const {
  check_weight(weight);
  if (ranks_.size() == 1) return weight > 0 ? value : std::nan("");
  const auto sums =
      all_reduce(Tensor::from<double>({weight > 0 ? value * weight : 0, weight}), ranks_).to_vector<double>();
  return sums[0] / sums[1];
}

Traffic DataParallel::take_traffic() {
  const Traffic t = own_.traffic();
  own_.reset_traffic();
  return t;
}

Tensor rows_of(const Tensor& batch, const Communicator& ranks, int64_t dim) {
  detail::check_defined("rows_of", {{"batch", batch}});
  const int d = wrap_dim("rows_of", dim, batch.rank());
  if (batch.rank() == 0) fail("rows_of: a scalar has no rows");
  if (ranks.size() == 1) return batch;
  const auto lengths = even_pieces(batch.shape()[d], ranks.size());
  const auto me = lengths.begin() + ranks.rank();
  return narrow(batch, d, std::accumulate(lengths.begin(), me, int64_t{0}), *me);
}

Rng stream_of(Rng& rng, const Communicator& ranks) {
  const auto half = [](uint64_t v, int i) { return static_cast<uint32_t>(v >> (32 * i)); };
  const uint64_t at = rng.reserve(1);
  const auto w = philox4x32({half(at, 0), half(at, 1), static_cast<uint32_t>(ranks.rank()), 0x72616e6b},
                            {half(rng.seed(), 0), half(rng.seed(), 1)});
  return Rng(static_cast<uint64_t>(w[0]) << 32 | w[1]);
}

}  // namespace sluice
