// Instances of the ladder's kernels, compiled for a GPU: one line for each instance whose registers the test
// cuda_registers prints. No library contains this file; the slots have instances of their own.
#include <sluice/cuda/attention/gate_backward.cuh>
#include <sluice/cuda/attention/mma.cuh>
#include <sluice/cuda/attention/ladder/naive.cuh>
#include <sluice/cuda/attention/ladder/simt.cuh>
#include <sluice/cuda/attention/wgmma.cuh>

namespace sluice::cuda {

template void run_attention_naive<128, 128, Softmax, Causal, NoGate>(const AttentionProblem<float>&, Causal);
template void run_attention_naive<128, 128, Relu2, Causal, NoGate>(const AttentionProblem<float>&, Causal);
template void run_attention_simt<128, 128, Softmax, Causal, NoGate>(const AttentionProblem<float>&, Causal);
template void run_attention_simt<64, 64, Relu2, Window, SigmoidGate<false>>(const AttentionProblem<float>&, Window);
template void run_attention_mma<64, Softmax, Causal, NoGate, BFloat16>(const AttentionProblem<BFloat16>&, Causal);
template void run_attention_mma<128, Softmax, Causal, NoGate, BFloat16>(const AttentionProblem<BFloat16>&, Causal);
template void run_attention_mma<128, Softmax, Causal, SigmoidGate<false>, BFloat16>(const AttentionProblem<BFloat16>&,
                                                                                    Causal);
template void run_attention_mma<128, Relu2, Causal, NoGate, BFloat16>(const AttentionProblem<BFloat16>&, Causal);
template void run_attention_wgmma<64, Softmax, Causal, NoGate, BFloat16>(const AttentionProblem<BFloat16>&, Causal);
template void run_attention_wgmma<128, Softmax, Causal, NoGate, BFloat16>(const AttentionProblem<BFloat16>&, Causal);
template void run_attention_wgmma<128, Softmax, Causal, SigmoidGate<false>, BFloat16>(const AttentionProblem<BFloat16>&,
                                                                                      Causal);
template void run_attention_wgmma<128, Relu2, Causal, NoGate, BFloat16>(const AttentionProblem<BFloat16>&, Causal);
template void run_attention_gate_backward<128, false>(const GateBackwardProblem<float>&);
template void run_attention_gate_backward<128, true>(const GateBackwardProblem<float>&);

}  // namespace sluice::cuda
