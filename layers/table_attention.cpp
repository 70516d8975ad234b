#include <sluice/layers/table_rows.h>

namespace sluice::detail {

void add_heads_rows(RowList& list) { heads_rows(list); }

}  // namespace sluice::detail
