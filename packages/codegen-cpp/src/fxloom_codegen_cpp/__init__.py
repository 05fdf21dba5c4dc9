"""C++/OpenMP kernels for the CPU. The plugin object is `fxloom_codegen_cpp.plugin.PLUGIN`."""
