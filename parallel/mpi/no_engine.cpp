#include <sluice/parallel/mpi/engine.h>

namespace sluice::detail {

std::shared_ptr<Engine> start_engine() {
  fail<DeviceError>("world: a launcher started this process (", launched_by(),
                    " is set), but Sluice was built without MPI; "
                    "configure it with -DSLUICE_MPI=ON");
}

std::string build_text() { return ""; }

}  // namespace sluice::detail
