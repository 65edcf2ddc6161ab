"""Which runs the suite has, and what is expected of them."""
SEEDS = (0, 1, 2)
RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # factors on a task's learning rate that sign is tuned over

# Learning rates at which training without compression does well (text: the best of 1, 2, 4, 8, 16 after 400 steps).
BASES = {
    "mlp": {"task": "mlp", "nodes": 8, "algorithm": "ring", "batch": 64, "epochs": 10, "lr": 0.1, "momentum": 0.0},
    "cnn": {"task": "cnn", "nodes": 4, "algorithm": "ring", "batch": 256, "epochs": 8, "lr": 0.05, "momentum": 0.9},
    "lm": {"task": "lm", "nodes": 4, "algorithm": "ring", "batch": 32, "epochs": 2, "lr": 8.0, "momentum": 0.9},
}
TITLES = {
    "mlp": "Fashion-MNIST, MLP 784-128-10, 8 nodes, batch 64, 10 epochs; accuracy in per cent",
    "cnn": "Fashion-MNIST, CNN of 207,178 parameters, 4 nodes, batch 256, momentum 0.9, 8 epochs; accuracy in per cent",
    "lm": "King James text, word-level LSTM of 228,280 parameters, 4 nodes, momentum 0.9, 2 epochs; perplexity",
}


# Committed steps in every stage of the warm start. 100 is the default, but a fifth of the CNN's short training.
WARM = {"mlp": 100, "cnn": 30, "lm": 100}
BRIEF = {"mlp": 5, "cnn": 10}  # the MLP's was chosen so that the whole run's encoded bytes come to less than a hundredth
# Layers that laco and topk send in 8 bits because they are small; lads and dropping send them as they are.
SMALL = {"mlp": ("*.bias", "3.weight"), "cnn": ("*.bias", "0.weight", "7.weight")}


def codec(name, density, steps, **settings):
    return {"codec": name, "density": density, "warm_start_steps": steps, **settings}


def in_8_bits(*matches):
    return [{"match": match, "codec": "l8"} for match in matches]


def of_images(task):
    warm = WARM[task]
    codecs = {
        "none": {"codec": "none"},
        "l8": {"codec": "l8"},
        "laco 10%": codec("laco", 0.1, warm),
        "laco 1%": codec("laco", 0.01, warm),
        "l8, direct": {"codec": "l8", "algorithm": "direct"},
        "laco 1%, direct": codec("laco", 0.01, warm, algorithm="direct"),
        "laco 1%, brief warm start": codec("laco", 0.01, BRIEF[task]),
        "laco 0.1%": codec("laco", 0.001, warm),
        "laco 1%, no error feedback": codec("laco", 0.01, warm, error_feedback="off"),
        "int8": {"codec": "int8"},
        "int4": {"codec": "int4"},
        "onebit": {"codec": "onebit"},
        "lads 10%": codec("lads", 0.1, warm),
        "topk 1%": codec("topk", 0.01, warm),
        "dropping 1%": codec("dropping", 0.01, warm),
        "dropping 0.5%": codec("dropping", 0.005, warm),
        "dropping 0.5%, as many bytes": codec("dropping", 0.005, 10, rules=in_8_bits(*SMALL[task])),
        "sign": {"codec": "sign"},
        "sign, no error feedback": {"codec": "sign", "error_feedback": "off"},
    }
    if warm < 100:
        codecs["laco 1%, default warm start"] = codec("laco", 0.01, 100)
    if task == "mlp":  # of its many small messages a fifth is headers: a hundredth in all takes a little less
        codecs["laco 0.75%, brief warm start"] = codec("laco", 0.0075, BRIEF[task])
    return codecs


def of_text():
    warm = WARM["lm"]
    return {
        "none": {"codec": "none"},
        "l8": {"codec": "l8"},
        "laco 10%": codec("laco", 0.1, warm, rules=in_8_bits("*bias*")),
        "laco 1%": codec("laco", 0.01, warm, rules=in_8_bits("*bias*")),
    }


SWEEP = (2, 4, 16)
# What no bar is about is trained with the first seed only: the suite is to end within an hour.
IMAGES_NO_BAR = ("int8", "int4", "onebit", "lads 10%", "topk 1%", "dropping 1%", "dropping 0.5%")
NO_BAR = {
    "mlp": IMAGES_NO_BAR,
    "cnn": (*IMAGES_NO_BAR, "laco 1%, default warm start"),
    "lm": ("laco 10%",),
}


def run(task, label, seed, settings, **changes):
    settings = dict(settings)
    beside = {name: settings.pop(name) for name in ("rules", "algorithm") if name in settings}
    return {"label": label, "spec": {**BASES[task], "seed": seed, "settings": settings, **beside, **changes}}


def plan(tasks, seeds, metric_of):
    """All runs that can be named by what is known. metric_of(run): its result, or None."""
    runs = []
    for task in tasks:
        codecs = of_text() if task == "lm" else of_images(task)
        for label, settings in codecs.items():
            if settings["codec"] == "sign":
                runs += tuned(task, label, settings, seeds, metric_of)
            else:
                runs += [run(task, label, seed, settings) for seed in (seeds[:1] if label in NO_BAR[task] else seeds)]
        if task == "mlp":
            for nodes in SWEEP:
                runs += [run(task, sweep_label(nodes), seed, codecs["laco 1%"], nodes=nodes) for seed in seeds]
    return sorted(runs, key=lambda run: run["spec"]["seed"])  # all of one seed first: a table of all codecs soon


def sweep_label(nodes):
    return f"laco 1%, P={nodes}"


def tuned(task, label, settings, seeds, metric_of):
    """A third of the epochs at every learning rate with the first seed, then all of them at the best rate and the next
    lower one, which a short training does no justice; then the other seeds at the better of the two."""
    first, *others = seeds
    epochs = max(1, BASES[task]["epochs"] // 3)
    rates = [round(BASES[task]["lr"] * factor, 6) for factor in RATES]
    trials = [run(task, f"{label}, lr {rate:g}, {epochs} epochs", first, settings, lr=rate, epochs=epochs) for rate in rates]
    found = [metric_of(trial) for trial in trials]
    if None in found:
        return trials
    best = max(range(len(rates)), key=found.__getitem__)
    full = {rate: run(task, f"{label}, lr {rate:g}", first, settings, lr=rate) for rate in rates[max(0, best - 1) : best + 1]}
    reached = {rate: metric_of(run) for rate, run in full.items()}
    if None in reached.values():
        return [*trials, *full.values()]
    chosen = max(reached, key=reached.__getitem__)
    full[chosen]["label"] = label
    return [*trials, *full.values(), *(run(task, label, seed, settings, lr=chosen) for seed in others)]


# CI's form: two minutes, and bounds that only a defect misses.
SHORT_BASES = {
    "mlp": {"epochs": 2, "batch": 256},
    "cnn": {"epochs": 1},
    "lm": {"epochs": 1, "max_steps": 120},
}
SHORT = {
    "none": {"codec": "none"},
    "l8": {"codec": "l8"},
    "laco 10%": codec("laco", 0.1, 10),
    "laco 1%": codec("laco", 0.01, 10),
    "laco 1%, direct": codec("laco", 0.01, 10, algorithm="direct"),
}
SHORT_BOUNDS = {  # by how much worse than none, in points; for text in per cent of the perplexity
    "mlp": {"l8": 1.0, "laco 10%": 2.0, "laco 1%": 3.0, "laco 1%, direct": 3.0},
    "cnn": {"l8": 2.0, "laco 10%": 3.0, "laco 1%": 4.0, "laco 1%, direct": 4.0},
    "lm": {"l8": 5.0, "laco 10%": 15.0},
}


def short_plan(tasks):
    return [
        run(task, label, 0, SHORT[label], **SHORT_BASES[task])
        for task in tasks
        for label in ("none", *SHORT_BOUNDS[task])
    ]
