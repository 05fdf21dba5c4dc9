"""From a torch-dialect graph to aten-dialect graphs: the forward graph and, by running autograd on fakes, backward graphs."""
