"""Train alone or on N ranks; stop after any step, and go on to the bit."""

import argparse
import os
import pathlib
import signal

import checkpoints
import job
import torch
import torch.distributed as dist

import gpulab

rank = int(os.environ.get("RANK", 0))
ranks = int(os.environ.get("WORLD_SIZE", 1))
local = int(os.environ.get("LOCAL_RANK", 0))


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="kept")
    parser.add_argument("--store", default="")  # a second tier
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--device", default="cuda")  # "cpu" takes gloo
    return parser.parse_args()


def begin(args):
    """This rank's device; all ranks can talk afterwards."""
    device = torch.device("cpu")
    if args.device == "cuda":
        if "GPULAB_GPU" in os.environ:  # a virtual GPU, and only where somebody asks for it
            gpulab.setup()
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    torch.use_deterministic_algorithms(True)
    for name in filter(None, (args.folder, args.store)):
        pathlib.Path(name).mkdir(parents=True, exist_ok=True)
    return device


def save(parts, step, args):
    states = [checkpoints.random_state()]
    if ranks > 1:  # every rank's
        states = [None] * ranks
        dist.all_gather_object(states, checkpoints.random_state())
    if rank == 0:
        state = {name: part.state_dict() for name, part in parts.items()}
        state |= {"step": step, "random": states}
        path = checkpoints.save(state, args.folder, step)
        if args.store:
            checkpoints.upload(path, args.store)
    if ranks > 1:
        dist.barrier()  # nobody ends before the file is there


def resume(parts, args):
    """The step to go on with."""
    if args.store and rank == 0:
        checkpoints.fetch(args.store, args.folder)
    path = [checkpoints.newest(args.folder) if rank == 0 else None]
    if ranks > 1:
        dist.broadcast_object_list(path)  # one rank chooses for all
    if path[0] is None:
        return 0
    state = torch.load(path[0], map_location="cpu", weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    if len(state["random"]) == ranks:  # with another number of ranks it is not to the bit anyway
        checkpoints.set_random_state(state["random"][rank])
    print(f"rank {rank} goes on from {path[0].name}", flush=True)
    return state["step"]


def main():
    notices = []
    for name in {"SIGTERM", "SIGUSR1"} & set(dir(signal)):  # Windows has no SIGUSR1
        signal.signal(getattr(signal, name), lambda number, frame: notices.append(number))
    args = arguments()
    device = begin(args)
    parts = job.build(device, args.steps)
    job.seed(1 + rank)  # each rank has its own dropout and augmentation
    done, told = resume(parts, args), torch.zeros((), device=device)
    model = net = parts["model"]
    if ranks > 1:
        model = torch.nn.parallel.DistributedDataParallel(net)  # all take rank 0's weights
    while done < args.steps and not told:
        x, y = job.batch(done, rank, ranks)
        loss = job.train_step(model, parts, x, y)
        if rank == 0:
            print(f"step {done}: loss {loss!r}", flush=True)  # all digits
        done += 1
        told.fill_(len(notices))
        if ranks > 1:
            dist.all_reduce(told)
        if told or done % args.every == 0 or done == args.steps:
            save(parts, done, args)
    if rank == 0 and done < args.steps:
        pathlib.Path(args.folder, "again").touch()
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
