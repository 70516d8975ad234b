# Install rules. What they make may be moved: package file and pkg-config file find their own place.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
set_target_properties(sluice_vectorize PROPERTIES EXPORT_NAME vectorize)
set_target_properties(sluice_table PROPERTIES EXPORT_NAME table)
set_target_properties(sluice_parallel PROPERTIES EXPORT_NAME parallel)

install(TARGETS sluice sluice_table sluice_parallel sluice_vectorize EXPORT sluice
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY core ops autograd parallel layers DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice
        FILES_MATCHING PATTERN "*.h" PATTERN "sluice.h" EXCLUDE PATTERN "cmake" EXCLUDE PATTERN "rungs" EXCLUDE)
install(FILES layers/sluice.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DATADIR}/sluice  # scripts work on the project's folder
        PATTERN "*.sh" EXCLUDE PATTERN "__pycache__" EXCLUDE)
install(FILES core/text/gdb.py DESTINATION ${CMAKE_INSTALL_DATADIR}/sluice)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

install(EXPORT sluice FILE sluiceTargets.cmake NAMESPACE sluice:: DESTINATION ${package_dir})
configure_package_config_file(core/cmake/sluiceConfig.cmake.in ${PROJECT_BINARY_DIR}/sluiceConfig.cmake
                              INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/sluiceConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)  # before 1.0 a minor version may break
install(FILES ${PROJECT_BINARY_DIR}/sluiceConfig.cmake ${PROJECT_BINARY_DIR}/sluiceConfigVersion.cmake
        DESTINATION ${package_dir})

string(REGEX REPLACE "^openblas" "-lopenblas" SLUICE_BLAS_LINK "${SLUICE_BLAS}")
file(RELATIVE_PATH SLUICE_PREFIX_FROM_PC
     ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(core/cmake/sluice.pc.in ${PROJECT_BINARY_DIR}/sluice.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/sluice.pc DESTINATION ${pkgconfig_dir})
