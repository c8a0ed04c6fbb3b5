//! The machine of this process, and how much of a pull it runs at once.

use std::{
    fmt, fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    thread,
};

use imagelet_core::image::{ByteSize, counted};

/// Minimum layers in flight, even with fewer cores, because the network and the disk work in parallel.
const LAYERS_MIN: usize = 4;
const LAYERS_MAX: usize = 16;
/// RAM for each layer in flight. The layer needs a quarter; read-ahead bytes and the page cache need the rest.
const MEMORY_PER_LAYER: u64 = 32 << 20;
const CONNECTIONS_PER_LAYER: usize = 3;
/// Maximum additional connections. With the first connection of each layer, they almost reach a host's default limit.
const CONNECTIONS_MAX: usize = 24;
/// Bytes read ahead for each additional connection. With 1 MiB, an import of 13 layers took 5 MB more memory and no less
/// time; a registry 40 ms away was no slower with less.
const READ_AHEAD_PER_CONNECTION: usize = 768 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    pub cores: usize,
    /// Bytes of RAM: those of the machine, or fewer if a control group limits them.
    pub memory: u64,
}

/// Limits that the fetches of all blobs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchSizes {
    /// Connections beyond the first connection of each blob.
    pub extra_connections: usize,
    /// Bytes that may be read ahead.
    pub read_ahead: usize,
}

impl FetchSizes {
    pub fn of(machine: Machine) -> Self {
        let extra_connections = (CONNECTIONS_PER_LAYER * machine.layers_in_flight()).min(CONNECTIONS_MAX);
        Self { extra_connections, read_ahead: extra_connections * READ_AHEAD_PER_CONNECTION }
    }
}

impl Machine {
    /// The layers of an image that are fetched and unpacked at once: one per core, 4 to 16, fewer if memory is scarce.
    pub fn layers_in_flight(self) -> usize {
        let by_memory = usize::try_from(self.memory / MEMORY_PER_LAYER).unwrap_or(LAYERS_MAX).max(1);
        self.cores.clamp(LAYERS_MIN, LAYERS_MAX).min(by_memory)
    }

    /// Reads the limits of this process. An unreadable limit is ignored.
    pub fn here() -> Self {
        let total = rustix::system::sysinfo();
        let total = (total.totalram as u64).saturating_mul(u64::from(total.mem_unit));
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let limit = memory_limit(&groups, Path::new("/sys/fs/cgroup"));
        Self {
            cores: thread::available_parallelism().map_or(1, NonZeroUsize::get),
            memory: limit.map_or(total, |limit| limit.min(total)),
        }
    }
}

/// The lowest memory limit of the control groups in `groups`, the text of `/proc/PID/cgroup` (cgroups(7)).
fn memory_limit(groups: &str, root: &Path) -> Option<u64> {
    let found = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, Path::new(parts.next()?.trim_start_matches('/')));
        let (root, files): (PathBuf, &[&str]) = match controllers {
            "" => (root.to_owned(), &["memory.max", "memory.high"]),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (root.join("memory"), &["memory.limit_in_bytes"])
            }
            _ => return None,
        };
        let folders = path.ancestors().map(move |folder| root.join(folder));
        folders.flat_map(|folder| files.iter().filter_map(move |file| number(&folder.join(file)))).min()
    });
    found.min()
}

/// `None`: the file is absent or contains `max`.
fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

impl fmt::Display for FetchSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let read_ahead = ByteSize(self.read_ahead as u64);
        write!(f, "{} more connections, {read_ahead} read ahead", self.extra_connections)
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} of memory", counted(self.cores as u64, "core"), ByteSize(self.memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_from_cores_and_memory() {
        const GIBIBYTE: u64 = 1 << 30;
        for (what, cores, memory, wanted) in [
            ("a small node", 2, 4 * GIBIBYTE, (4, 12, 9 << 20)),
            ("one core", 1, 4 * GIBIBYTE, (4, 12, 9 << 20)),
            ("the limit of the packaged unit", 64, GIBIBYTE / 2, (16, 24, 18 << 20)),
            ("eight cores", 8, 32 * GIBIBYTE, (8, 24, 18 << 20)),
            ("a large node", 192, 2048 * GIBIBYTE, (16, 24, 18 << 20)),
            ("scarce memory", 8, 96 << 20, (3, 9, 6912 << 10)),
            ("next to no memory", 8, 1 << 20, (1, 3, 2304 << 10)),
        ] {
            let machine = Machine { cores, memory };
            let layers = machine.layers_in_flight();
            let fetch = FetchSizes::of(machine);
            assert_eq!((layers, fetch.extra_connections, fetch.read_ahead), wanted, "{what}");
        }
    }

    #[test]
    fn the_lowest_limit_of_the_control_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("system.slice/imagelet.service/memory.max", "1073741824\n");
        write("system.slice/imagelet.service/memory.high", "536870912\n");
        write("system.slice/memory.max", "max\n");
        write("small.slice/memory.max", "1048576\n");
        write("small.slice/one.service/memory.max", "max\n");
        write("memory/docker/memory.limit_in_bytes", "2097152\n");
        for (groups, wanted) in [
            ("0::/system.slice/imagelet.service\n", Some(536_870_912)),
            ("0::/system.slice\n", None),
            ("0::/small.slice/one.service\n", Some(1_048_576)),
            ("12:cpu,cpuacct:/docker\n11:memory:/docker/unknown\n0::/\n", Some(2_097_152)),
            ("no line of this kind\n:\n", None),
            ("", None),
        ] {
            assert_eq!(memory_limit(groups, root.path()), wanted, "{groups}");
        }
    }
}
