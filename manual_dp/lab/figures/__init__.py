"""Every picture of the course. What draws is imported when a picture is drawn.

As SVG, with drawsvg: the same bytes on every machine, so that nbval compares them.
    step        one step of data parallel training, the first picture  lesson 00
    split       what three ways to split LeNet send                    lesson 01
    pipeline    who works when                                         lesson 01
    memory      which ranks hold which memory                          lesson 02
    player      all-reduces that move, from a run of the function      lesson 03
    race        several of them on one clock                           lesson 03
    shards      the rows of each rank                                  lesson 04
    weights     how much each image counts                             lesson 05
    traffic     who sends how many bytes to whom                       lessons 07, 22
    worlds      a list in one process, and a process a rank            lesson 08
    spread      how numbers reach all ranks, round by round            lesson 08
    calls       which calls of a collective met                        lesson 08
    buckets     which gradients lie in which bucket                    lesson 09
    clock       when gradients were ready and buckets under way        lesson 09
    sampler     which rank sees which example, epoch by epoch          lesson 10
    turns       workers on a clock: who computes, who waits            lesson 13
    budget      what memory is made of                                 lesson 14
    plan        what a step on more devices is predicted to take       lesson 16
    timeline    what each rank does, and when                          lesson 17
    hosts       hosts, the torchrun on each, its ranks                 lesson 19
    messages    what each message of a ring carried                    lesson 22
    svg         the one look of all these; places: where ranks stand

As PNG, with matplotlib:
    plot        charts in one look: lines, bars, bands, tables
    overlay     masks over images
"""
