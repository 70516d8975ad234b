// The programs in READMEs, as they stand there: all are compiled, and what one prints is compared with what its page
// shows. extract.sh writes them out; house_files asks that each has its place here, between the declarations that its
// page leaves out.
#include "support/catch.h"

#include <sluice/parallel/mpi/world.h>
#include <sluice/layers/table_rows.h>
#include <sluice/sluice.h>

#include <iostream>
#include <sstream>

#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-parameter"
#pragma GCC diagnostic ignored "-Wunused-parameter"

namespace readme {
#include "README_1.inc"
}

TEST_CASE("snippets: programs print what their READMEs show") {
  std::ostringstream printed;
  std::streambuf* before = std::cout.rdbuf(printed.rdbuf());
  readme::program();
  std::cout.rdbuf(before);
  const std::string shown =
#include "README_1.out"
      ;
  CHECK(printed.str() == shown);
}

// -- compiled, not run ---------------------------------------------------------------------------------------

namespace model_readme {
using namespace sluice;
#include "README_2.inc"
void snippet(Rng& rng) {
#include "README_3.inc"
}
}  // namespace model_readme

namespace cuda_readme {
using namespace sluice;
void snippet() {
#include "cuda_README_1.inc"
}
}  // namespace cuda_readme

namespace examples_readme {
using namespace sluice;
#include "examples_README_1.inc"
void snippet(Rng& rng, const Tensor& x, const Tensor& side) {
#include "examples_README_2.inc"
}
}  // namespace examples_readme

namespace layers_calls_readme {
using namespace sluice;
void snippet(const Gau& layer, const MultiHeadAttention& cross, const Tensor& x, const Tensor& real,
             const Tensor& documents, const Tensor& memory, const Tensor& known, const Tensor& prompt,
             const Tensor& next, Rng& rng) {
#include "layers_CALLS_1.inc"
}
#include "layers_CALLS_2.inc"
}  // namespace layers_calls_readme

namespace layers_readme {
using namespace sluice;
struct Model {
  Linear encoder;
  SLUICE_PARTS(encoder);
};
struct Batch {};
Tensor loss_of(const Model&, const Batch&) { return {}; }
void snippet(const Model& model, const Model& best_model, double loss, double best, int waited, int patience, bool stop,
             const std::vector<Batch>& batches) {
#include "layers_CALLS_3.inc"
}
#include "layers_ADD_A_LAYER_1.inc"
void table(detail::RowList& rows) {
#include "layers_ADD_A_LAYER_2.inc"
}
}  // namespace layers_readme

namespace layers_data_readme {
using namespace sluice;
void table() {
#include "layers_data_README_1.inc"
}
void images() {
#include "layers_data_README_2.inc"
}
void text(const Linear& model, Adam& adam, Rng& rng) {
#include "layers_data_README_3.inc"
}
}  // namespace layers_data_readme

namespace layers_port_readme {
using namespace sluice;
void snippet(Rng& rng, const PyTorchRules& rules) {
#include "layers_port_README_1.inc"
}
}  // namespace layers_port_readme

namespace layers_models_readme {
using namespace sluice;
void snippet(Rng& rng) {
#include "layers_models_README_1.inc"
}
}  // namespace layers_models_readme

namespace ops_add_an_op {
using namespace sluice;
#include "ops_ADD_AN_OP_1.inc"
}  // namespace ops_add_an_op

namespace parallel_readme {
using namespace sluice;
struct Model {
  Linear out;
  Model(LinearOptions options, Rng& rng) : out(options, rng) {}
  Tensor operator()(const Tensor& x) const { return out(x); }
  SLUICE_PARTS(out);
};
extern const Tensor x, t;
extern const double tokens;
extern const std::string path;
extern const TrainingState state;
template <int>  // never made: this program knows nothing of MPI
struct Snippet {
#include "parallel_README_1.inc"
};
}  // namespace parallel_readme
