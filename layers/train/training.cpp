#include <sluice/layers/train/training.h>

#include <sluice/core/node.h>
#include <sluice/core/text/json.h>
#include <sluice/core/text/safetensors.h>
#include <sluice/ops/shape/create.h>
#include <sluice/parallel/collectives.h>

#include <charconv>

namespace sluice {

namespace {

constexpr std::string_view kOptimizer = "optimizer.", kConfig = "config.";

template <class T> T metadata_number(const SafeTensors& file, const std::string& at, const std::string& key) {
  auto it = file.metadata.find(key);
  if (it == file.metadata.end()) fail<IOError>(at, ": metadata \"", key, "\" is missing");
  T value{};
  const std::string& s = it->second;
  auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (error != std::errc() || end != s.data() + s.size())
    fail<IOError>(at, ": metadata \"", key, "\" is not a number: \"", s, "\"");
  return value;
}

TrainingState state_of(const SafeTensors& file, const std::string& at) {
  if (file.format() != detail::kCheckpointFormat)
    fail<IOError>(at, " is not a Sluice checkpoint; load() reads weights that save() wrote");
  TrainingState state;
  state.step = metadata_number<int64_t>(file, at, "step");
  state.position = file.metadata.contains("position") ? metadata_number<int64_t>(file, at, "position") : state.step;
  if (state.step < 0 || state.position < 0) fail<IOError>(at, ": negative step or position");
  for (const auto& [key, value] : file.metadata)
    if (key.starts_with(kConfig)) state.config[key.substr(kConfig.size())] = value;
  return state;
}

}  // namespace

namespace detail {

void save_training(const Members& model, const std::string& path, const Optimizer& optimizer, const Rng& rng,
                   const TrainingState& state, std::map<std::string, std::string> metadata, const Communicator& ranks) {
  if (state.step < 0 || state.position < -1)
    fail<ValueError>("save_checkpoint: need a step of at least 0, a position of at least -1 — got ", state.step, ", ",
                     state.position);
  ranks.check_same("save_checkpoint: seed and offset of the generator", str(rng.seed(), ", ", rng.offset()));
  SafeTensors file;
  file.metadata = std::move(metadata);
  for (const auto& s : model.slots) file.tensors[std::string(detail::kCheckpointModel) + s.name] = s.tensor->detach();
  if (ranks.rank() == 0 || optimizer.shards().size() > 1)
    optimizer.each_entry([&](const std::string& name, const Tensor& x) {
      if (ranks.rank() == 0) file.tensors[std::string(kOptimizer) + name] = to(x, cpu);
    });
  for (const auto& [key, value] : state.config) file.metadata[std::string(kConfig) + key] = value;
  file.metadata["format"] = detail::kCheckpointFormat;
  file.metadata["step"] = std::to_string(state.step);
  file.metadata["position"] = std::to_string(state.position < 0 ? state.step : state.position);
  file.metadata["optimizer"] = optimizer.name();
  file.metadata["rng.seed"] = std::to_string(rng.seed());
  file.metadata["rng.offset"] = std::to_string(rng.offset());
  on_rank_0(ranks, [&] { save_safetensors(path, file, "save_checkpoint"); });
}

static TrainingState load_here(const Members& model, const std::string& path, Optimizer& optimizer, Rng& rng,
                               std::map<std::string, Tensor>& moments) {
  SafeTensors file = load_safetensors(path, {}, "load_checkpoint");
  const std::string at = str("load_checkpoint: '", path, "'");
  TrainingState state = state_of(file, at);
  // Older files do not say it. Entries alone do not tell: RMSprop and Adam both have m and v.
  if (const auto of = file.metadata.find("optimizer"); of != file.metadata.end() && of->second != optimizer.name())
    fail<IOError>(at, " holds the state of ", of->second, ", not of ", optimizer.name());
  const auto seed = metadata_number<uint64_t>(file, at, "rng.seed"),
             offset = metadata_number<uint64_t>(file, at, "rng.offset");
  std::map<std::string, Tensor> weights;
  for (auto& [name, x] : file.tensors) {
    if (name.starts_with(detail::kCheckpointModel)) weights[name.substr(detail::kCheckpointModel.size())] = x;
    else if (name.starts_with(kOptimizer)) moments[name.substr(kOptimizer.size())] = x;
    else fail<IOError>(at, ": tensor \"", name, "\" belongs to neither model nor optimiser");
  }
  take_former_names(model, weights), take_former_names(model, moments);
  check_state(model, weights, true, at);  // throws before anything changes
  optimizer.load_state(moments, at);      // checks everything before it changes anything
  load_state(model, weights);             // cannot fail after check_state()
  rng.set_state(seed, offset);
  return state;
}

TrainingState load_training(const Members& model, const std::string& path, Optimizer& optimizer, Rng& rng,
                            const Communicator& ranks) {
  TrainingState state;
  std::map<std::string, Tensor> moments;
  on_rank_0(ranks, [&] { state = load_here(model, path, optimizer, rng, moments); });
  if (ranks.size() == 1) return state;
  NoGrad guard;
  for (const auto& s : model.slots) copy_(*s.tensor, broadcast(*s.tensor, 0, ranks));
  optimizer.load_state_of_rank_0(moments, ranks);
  const auto signed_of = [](uint64_t v) { return static_cast<int64_t>(v); };
  const auto n =
      broadcast(Tensor::from<int64_t>({state.step, state.position, signed_of(rng.seed()), signed_of(rng.offset())}), 0,
                ranks)
          .to_vector<int64_t>();
  state.step = n[0], state.position = n[1];
  rng.set_state(static_cast<uint64_t>(n[2]), static_cast<uint64_t>(n[3]));
  Json::Object config(state.config.begin(), state.config.end());
  config = parse_json(broadcast_text(to_text(config), 0, ranks)).get<Json::Object>();
  for (const auto& [key, value] : config) state.config[key] = value.get<std::string>();
  return state;
}

}  // namespace detail

TrainingState read_checkpoint_state(const std::string& path) {
  const auto none = [](const std::string&) { return false; };
  constexpr const char* op = "read_checkpoint_state";
  return state_of(load_safetensors(path, none, op), str(op, ": '", path, "'"));
}

}  // namespace sluice
