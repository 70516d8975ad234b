// What a training step over many ranks takes, on paper: from what a rank computes and what its network does. A message
// of b bytes takes latency + b / bandwidth (Hockney 1994); what parallel/ sends, and in how many rounds, is known from
// its collectives. tests/bench/bench_ranks measures both numbers, a step beside this, and prints what thousands of
// ranks would do.
#pragma once

#include <cstdint>

namespace sluice::testing {

/// A network as one rank sees it; all ranks send at the same time.
struct Network {
  double latency = 0;    // seconds of a message beside its bytes
  double bandwidth = 0;  // bytes a second out of a rank, and as many into it
  bool shared = false;   // the bandwidth is that of all ranks together: processes of one machine

  // Seconds, on the rank that takes longest. ValueError unless ranks >= 1, bytes >= 0 and bandwidth > 0.
  /// What every collective begins with: ⌈log2 ranks⌉ rounds of a small message.
  double agreement(int ranks) const;
  /// Σ over ranks of `bytes`, on all of them: pieces to the rank that adds them, and the sums to all.
  double all_reduce(int ranks, int64_t bytes) const;
  /// `bytes` of each rank to all others: the states of linear-time layers.
  double all_gather(int ranks, int64_t bytes) const;
  /// `bytes` of each rank to the next one: a step around the ring of attention.
  double ring_step(int ranks, int64_t bytes) const;

 private:
  double exchange(int ranks, int messages, double bytes) const;
};

/// A training step of one rank for its part of the batch, alone.
struct StepParts {
  double forward = 0, backward = 0, update = 0;  // seconds
  int64_t gradient_bytes = 0;                    // of all parameters
  int64_t bucket_bytes = 4 << 20;                // DataParallelOptions
  bool overlap = true;                           // gradients are sent while backward still runs

  /// Seconds without any other rank.
  double alone() const { return forward + backward + update; }
  /// Seconds over `ranks`, each with a part like this one. With overlap a bucket is sent once its gradients are there,
  /// which come evenly through the backward pass, and one after the other.
  double data_parallel(const Network& network, int ranks) const;
};

/// Seconds of causal or full attention over a sequence cut into equal pieces, one for each rank: `compute` seconds for
/// the work of one rank in all, while keys and values, `bytes` of a piece, go round.
double ring_attention_seconds(double compute, int64_t bytes, const Network& network, int ranks);

}  // namespace sluice::testing
