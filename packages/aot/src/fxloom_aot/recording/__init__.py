"""Run the program on fakes: the raw log of its operators, what autograd recorded, the modes around it."""
