#include "support/scaling.h"

#include <sluice/core/error.h>

#include <algorithm>
#include <bit>

namespace sluice::testing {

double StepParts::data_parallel(const Network& network, int ranks) const {
  if (ranks == 1) return alone();
  const int64_t buckets = std::max<int64_t>(1, (gradient_bytes + bucket_bytes - 1) / bucket_bytes);
  const double each = network.all_reduce(ranks, gradient_bytes / buckets);
  const double sending = each * static_cast<double>(buckets);
  if (!overlap) return alone() + sending;
  // Either the last bucket alone is sent after the backward pass, or the network is busy from the first one on.
  const double end = std::max(backward + each, backward / static_cast<double>(buckets) + sending);
  return forward + end + update;
}

double ring_attention_seconds(double compute, int64_t bytes, const Network& network, int ranks) {
  const double step = compute / ranks;  // the first one needs nothing of others
  return step + (ranks - 1) * std::max(step, network.ring_step(ranks, bytes));
}

double Network::agreement(int ranks) const {
  return exchange(ranks, 0, 0) + std::bit_width(static_cast<unsigned>(ranks - 1)) * latency;
}
double Network::all_reduce(int ranks, int64_t bytes) const {
  const double piece = static_cast<double>(bytes) / ranks;
  return ranks == 1 ? 0 : agreement(ranks) + 2 * exchange(ranks, ranks - 1, piece);
}
double Network::all_gather(int ranks, int64_t bytes) const {
  return ranks == 1 ? 0 : agreement(ranks) + exchange(ranks, ranks - 1, static_cast<double>(bytes));
}
double Network::ring_step(int ranks, int64_t bytes) const {
  return ranks == 1 ? 0 : agreement(ranks) + exchange(ranks, 1, static_cast<double>(bytes));
}

/// Every rank sends so many messages of so many bytes, started at once.
double Network::exchange(int ranks, int messages, double bytes) const {
  if (ranks < 1 || bytes < 0 || !(bandwidth > 0) || !(latency >= 0))
    fail<ValueError>("network: needs ranks >= 1, bytes >= 0, bandwidth > 0 and latency >= 0 — got ", ranks, ", ", bytes,
                     ", ", bandwidth, ", ", latency);
  const double sent = messages * bytes * (shared ? ranks : 1);
  return messages * latency + sent / bandwidth;
}

}  // namespace sluice::testing
