# Compiles one source for a GPU. OBJECT.txt gets what ptxas says of each kernel; one that spills is an error, and so are a
# stack frame in attention, whose tiles must stay in registers (elsewhere sin and cos take one), a wgmma that ptxas must
# serialise, because something else touches its registers while it is under way, and a setmaxnreg that it ignores. Kernels
# are optimised by default; -O1 is for the code around them, which only launches.
execute_process(
  COMMAND ${NVCC} -ccbin ${HOST} -std=c++20 -Xcompiler -O1 --expt-relaxed-constexpr --extended-lambda --diag-suppress 186 -I${INCLUDE}
          --generate-code=arch=compute_90a,code=[sm_90a] -Xcompiler -fPIC -Xptxas -v -c ${SOURCE} -o ${OBJECT}
  OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE status)
if(status)
  message(FATAL_ERROR "${SOURCE} does not compile for sm_90a:\n${text}")
endif()
file(WRITE ${OBJECT}.txt "${text}")
find_program(FILT c++filt)
if(FILT)
  execute_process(COMMAND ${FILT} INPUT_FILE ${OBJECT}.txt OUTPUT_VARIABLE text)
endif()
string(REGEX MATCHALL "Compiling entry function '[^\n]*\n[^\n]*\n[^\n]*spill loads\n[^\n]*" kernels "${text}")
set(table "")
set(spilled "")
foreach(kernel IN LISTS kernels)
  string(REGEX MATCH "function '([^\n]*)' for" _ "${kernel}")
  set(name "${CMAKE_MATCH_1}")
  string(REGEX REPLACE "^void |sluice::(cuda::|formula::)?|\\(sluice.*$" "" name "${name}")
  string(SUBSTRING "${name}" 0 110 name)
  string(REGEX MATCH "Used ([0-9]+) registers" _ "${kernel}")
  string(LENGTH "${CMAKE_MATCH_1}" digits)
  math(EXPR blanks "9 - ${digits}")
  string(REPEAT " " ${blanks} blanks)
  string(APPEND table "${blanks}${CMAKE_MATCH_1}  ${name}\n")
  if(NOT kernel MATCHES " 0 bytes spill stores, 0 bytes spill loads" OR
     (SOURCE MATCHES "/attention/" AND NOT kernel MATCHES " 0 bytes stack frame"))
    string(APPEND spilled "${kernel}\n")
  endif()
endforeach()
file(WRITE ${OBJECT}.txt "${table}")
# Sources without kernels aside, no table means that this ptxas words its lines in another way: spills would pass unseen.
if(NOT table AND NOT SOURCE MATCHES "/(blas|install|nccl|runtime|bench_ladder)[.]cu$")
  file(REMOVE ${OBJECT})
  message(FATAL_ERROR "${SOURCE}: what ptxas says of its kernels is not understood:\n${text}")
endif()
if(spilled)
  file(REMOVE ${OBJECT})
  message(FATAL_ERROR "these kernels use local memory:\n${spilled}")
endif()
string(REGEX MATCHALL "[^\n]*(wgmma[^\n]*serialized|setmaxnreg)[^\n]*" refused "${text}")
if(refused)
  file(REMOVE ${OBJECT})
  message(FATAL_ERROR "wgmma does not run by itself, or registers are not given on, in these kernels:\n${refused}")
endif()
