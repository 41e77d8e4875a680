"""The headings of lecture 10 that its checks send a student to."""

TIMER = "Time it so that the number holds"
RECORDS = "What torch.profiler records"
JOBS = "Four jobs, four bottlenecks"
ROOF = "The job under the roof"
MFU = "How far from the chip: MFU"
MISTAKES = "Common mistakes"
SECTIONS = (TIMER, RECORDS, JOBS, ROOF, MFU, MISTAKES)
