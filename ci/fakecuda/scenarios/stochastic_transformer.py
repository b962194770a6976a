import transformer


def cases(wheel):
    transformer.cases(wheel, "stochastic_transformer")
