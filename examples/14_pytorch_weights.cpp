// Weights to PyTorch and back: a model of torch.nn.TransformerEncoderLayer, its twin here, and safetensors between
// them.
//
//   14_pytorch_weights                             writes weights, an input and its output to from_sluice.safetensors
//   python3 14_pytorch_weights.py                  loads it into torch, compares, trains, writes from_torch.safetensors
//   14_pytorch_weights from_torch.safetensors      loads that and compares; with rules for names, no weight is touched
//   by hand
#include <sluice/sluice.h>

#include <cstdio>
#include <string>
#include <vector>

using namespace sluice;

struct Model {
  Embedding embed;
  std::vector<TransformerBlock<MultiHeadAttention, Mlp>> layers;
  Linear head;

  explicit Model(Rng& rng) : embed({50, 16}, rng), head({16, 50}, rng) {
    const HeadsOptions heads{.dim = 16, .heads = 4, .qkv_bias = true, .out_bias = true};  // torch has all biases
    for (int i = 0; i < 2; ++i)
      layers.push_back({MultiHeadAttention({.heads = heads}, rng), Mlp({.dim = 16, .hidden = 40}, rng)});
  }
  Tensor operator()(const Tensor& tokens, const Pass& pass = {}) const {
    Tensor x = embed(tokens);
    for (const auto& layer : layers) x = layer(x, pass);
    return head(x);
  }
  SLUICE_PARTS(embed, layers, head);
};

// What a name here is called there. Linear maps are transposed by themselves.
const PyTorchRules rules = {
    {"attention\\.q\\.", "self_attn.in_proj_", {.part = 0}},  // one tensor there: q | k | v
    {"attention\\.k\\.", "self_attn.in_proj_", {.part = 1}},
    {"attention\\.v\\.", "self_attn.in_proj_", {.part = 2}},
    {"attention\\.out\\.", "self_attn.out_proj."},
    {"attention_norm", "norm1"},
    {"feed_norm", "norm2"},
    {"feed\\.in\\.", "linear1."},
    {"feed\\.out\\.", "linear2."},
};

/// The weights, and beside them tokens and what the model makes of them, for the other side to compare.
void write(const Model& model, const std::string& path) {
  save_pytorch(model, path, rules, "model.");
  NoGrad guard;
  Rng rng(2);
  SafeTensors file = load_safetensors(path);
  const Tensor tokens = randint(0, 50, {3, 7}, rng);
  file.tensors["tokens"] = tokens, file.tensors["logits"] = model(tokens);
  save_safetensors(path, file);
}

/// The largest difference between what the file says of its tokens and what the model with the file's weights says.
double difference(const Model& model, const std::string& path) {
  load_pytorch(model, path, rules, {.prefix = "model."});
  NoGrad guard;
  const SafeTensors file = load_safetensors(path);
  return max(abs(model(file.tensors.at("tokens")) - file.tensors.at("logits"))).item();
}

int main(int argc, char** argv) try {
  const bool given = argc > 1 && std::string(argv[1]) != "--smoke";
  const std::string path = given ? argv[1] : "from_sluice.safetensors";
  Rng rng(given ? 3 : 1);
  if (!given) write(Model(rng), path);
  const Model other(rng);  // of other random weights
  const double d = difference(other, path);
  std::printf("%s: %lld weights, logits differ by %.0e\n", path.c_str(), (long long)count(other), d);

  // A wrong rule is an error that names what is missing, and changes nothing.
  try {
    load_pytorch(other, path, {}, {.prefix = "model."});
  } catch (const IOError& e) {
    const std::string message = e.what();  // many lines, of which two are shown
    std::printf("without rules: %s\n", message.substr(0, message.find('\n', message.find('\n') + 1)).c_str());
  }
  return d < 1e-5 ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return 1;
}

// Expected output:
// from_sluice.safetensors: 6626 weights, logits differ by 0e+00
// without rules: load_pytorch: 'from_sluice.safetensors' does not fit; the model is as it was
//   missing: "model.layers.0.attention.k.bias"

// Expected output of the other two commands:
//
// from_sluice.safetensors: logits differ by 2e-06
// from_torch.safetensors: written at a loss of 0.001
// from_torch.safetensors: 6626 weights, logits differ by 4e-06
