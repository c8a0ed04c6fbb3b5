//! Starts the real parts: each with its own root in a temporary directory, on a free loopback port, ended by its id.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use base64::Engine as _;
use tokio::time::Instant;

use crate::{
    images::{Blob, Image},
    ports::Port,
};

mod containerd;

pub(crate) use containerd::{Containerd, ContainerdRelease, ContainerdSetup};

/// How long a part may take until it answers; it takes a tenth of a second on an idle machine.
const READY_MAX: Duration = Duration::from_mins(1);

/// A temporary directory; kept for a look when `IMAGELET_TEST_KEEP` is set.
pub(crate) fn scratch() -> tempfile::TempDir {
    let mut folder = tempfile::Builder::new().prefix("imagelet-it-").tempdir().unwrap();
    if std::env::var_os("IMAGELET_TEST_KEEP").is_some() {
        folder.disable_cleanup(true);
    }
    folder
}

/// Fails the test that needs root, and says so.
pub(crate) fn require_root(what: &str) {
    assert!(rustix::process::geteuid().is_root(), "{what} needs root: run the tests as root");
}

/// The mounts of this process, one a line; the fifth field is the target. Another test may have a target whose name is no text.
pub(crate) fn mount_table() -> String {
    String::from_utf8_lossy(&fs::read("/proc/self/mountinfo").unwrap()).into_owned()
}

/// Waits until `ready` answers true; `what` names it in the failure.
pub(crate) fn wait_until(what: &str, mut ready: impl FnMut() -> bool) {
    let started = Instant::now();
    while !ready() {
        assert!(started.elapsed() < READY_MAX, "waited {READY_MAX:?} for {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Whether `ready` answers true in this time.
pub(crate) fn wait_until_within(time: Duration, mut ready: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !ready() {
        if started.elapsed() > time {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

/// A child process of ours, killed when dropped; what it says goes to a file.
#[derive(Debug)]
pub(crate) struct Part {
    child: Child,
    log: PathBuf,
}

impl Part {
    pub(crate) fn start(command: &mut Command, package: &str, log: PathBuf) -> Self {
        Self::start_with_stdin(command, Stdio::null(), package, log)
    }

    /// Starts it with something else than nothing to read.
    pub(crate) fn start_with_stdin(command: &mut Command, stdin: Stdio, package: &str, log: PathBuf) -> Self {
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(stdin).stdout(file.try_clone().unwrap()).stderr(file);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start `{name}`: {error}; install the Debian package {package}"));
        Self { child, log }
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, signal).unwrap();
    }

    /// The exit status, once it ended.
    pub(crate) fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Ends it the hard way and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        // An error says that it ended before.
        drop(self.child.kill());
        self.child.wait().unwrap();
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if thread::panicking() {
            let log = self.log();
            let tail = log.len().saturating_sub(6000);
            let tail = (tail..log.len()).find(|at| log.is_char_boundary(*at)).unwrap_or(log.len());
            // The harness shows what a failed test wrote to its own streams.
            #[expect(clippy::print_stderr, reason = "shown with the failure of a test, and only then")]
            {
                eprintln!("--- {} ---\n{}", self.log.display(), &log[tail..]);
            }
        }
    }
}

/// `docker-registry` from Debian, open or behind a password.
#[derive(Debug)]
pub(crate) struct Registry {
    part: Part,
    port: Port,
    login: Option<String>,
    folder: tempfile::TempDir,
}

/// Another `docker-registry` with the content of the first, behind TLS or another way to log in.
#[derive(Debug)]
pub(crate) struct RegistryFront {
    _part: Part,
    port: Port,
}

impl RegistryFront {
    pub(crate) fn address(&self) -> String {
        self.port.address()
    }
}

impl Registry {
    pub(crate) fn start() -> Self {
        Self::start_with(None)
    }

    /// Behind htpasswd: `user:password`.
    pub(crate) fn start_with_login(login: &str) -> Self {
        Self::start_with(Some(login))
    }

    fn start_with(login: Option<&str>) -> Self {
        let folder = scratch();
        let port = Port::choose();
        let auth = login.map_or(String::new(), |login| {
            let passwords = folder.path().join("htpasswd");
            fs::write(&passwords, htpasswd(login)).unwrap();
            format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", passwords.display())
        });
        let part = Self::serve(folder.path(), "registry", &port, "", &auth);
        Self { part, port, login: login.map(str::to_owned), folder }
    }

    /// Ends it the hard way, and starts it again on the same port after a pause.
    pub(crate) fn restart_after(&mut self, pause: Duration) {
        assert!(self.login.is_none(), "a registry behind a password is not restarted");
        self.part.kill();
        thread::sleep(pause);
        self.part = Self::serve(self.folder.path(), "registry", &self.port, "", "");
    }

    /// `tls` is YAML in the braces of `http`, with a comma before it; `auth` is a section of its own.
    pub(crate) fn front(&self, name: &str, tls: &str, auth: &str) -> RegistryFront {
        let port = Port::choose();
        RegistryFront { _part: Self::serve(self.folder.path(), name, &port, tls, auth), port }
    }

    fn serve(folder: &Path, name: &str, port: &Port, tls: &str, auth: &str) -> Part {
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}, delete: {{enabled: true}}}}\n\
             http: {{addr: \"127.0.0.1:{port}\"{tls}}}\n{auth}",
            folder.join("blobs").display()
        );
        let file = folder.join(format!("{name}.yml"));
        fs::write(&file, config).unwrap();
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(&file);
        let part = Part::start(&mut command, "docker-registry", folder.join(format!("{name}.log")));
        wait_until("docker-registry", || TcpStream::connect(port.address()).is_ok());
        part
    }

    pub(crate) fn address(&self) -> String {
        self.port.address()
    }

    /// `address/name`, after pushing the image there; the name carries its tag.
    pub(crate) fn push(&self, name: &str, image: &Image) -> String {
        let (repository, tag) = name.rsplit_once(':').expect("a name with a tag");
        for blob in image.layers.iter().chain([&image.config]) {
            self.push_blob(repository, blob);
        }
        let manifest = &image.manifest;
        let reply =
            self.request("PUT", &format!("/v2/{repository}/manifests/{tag}"), &manifest.media_type, &manifest.bytes);
        assert_eq!(reply.status, 201, "push {name}: {}", reply.head);
        format!("{}/{name}", self.address())
    }

    /// How many blobs clients asked for so far.
    pub(crate) fn blob_requests(&self) -> usize {
        self.part.log().lines().filter(|line| line.contains("\"GET /v2/") && line.contains("/blobs/sha256:")).count()
    }

    fn push_blob(&self, repository: &str, blob: &Blob) {
        let open = self.request("POST", &format!("/v2/{repository}/blobs/uploads/"), "", &[]);
        assert_eq!(open.status, 202, "open an upload: {}", open.head);
        let location = open.header("location").expect("an upload has a location");
        let path = location.split_once(&self.address()).map_or(location.as_str(), |(_, path)| path);
        let mark = if path.contains('?') { '&' } else { '?' };
        let put = self.request(
            "PUT",
            &format!("{path}{mark}digest={}", blob.digest),
            "application/octet-stream",
            &blob.bytes,
        );
        assert_eq!(put.status, 201, "push a blob: {}", put.head);
    }

    fn request(&self, method: &str, path: &str, media_type: &str, body: &[u8]) -> Reply {
        let login = self.login.as_ref().map_or(String::new(), |login| {
            format!("Authorization: Basic {}\r\n", base64::engine::general_purpose::STANDARD.encode(login))
        });
        http(&self.address(), method, path, &format!("{login}Content-Type: {media_type}\r\n"), body)
    }
}

fn htpasswd(login: &str) -> Vec<u8> {
    let (user, password) = login.split_once(':').expect("user:password");
    let output = Command::new("htpasswd")
        .args(["-Bbn", user, password])
        .output()
        .unwrap_or_else(|error| panic!("cannot run `htpasswd`: {error}; install the Debian package apache2-utils"));
    assert!(output.status.success(), "htpasswd failed");
    output.stdout
}

/// An answer to [`http`].
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned())
    }
}

/// One request over a connection of its own.
pub(crate) fn http(address: &str, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("an answer has a head");
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("an answer has a status");
    Reply { status, head }
}

/// An ext4 file system of its own on a loop device; unmounted when dropped.
#[derive(Debug)]
pub(crate) struct Disk {
    mountpoint: PathBuf,
    _folder: tempfile::TempDir,
}

impl Disk {
    /// A disk of this many MiB, on the memory file system where there is one.
    pub(crate) fn new(mebibytes: u64) -> Self {
        require_root("a loop device");
        let mut builder = tempfile::Builder::new();
        builder.prefix("imagelet-disk-");
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { builder.tempdir_in(memory) } else { builder.tempdir() }.unwrap();
        let file = folder.path().join("disk.img");
        File::create(&file).unwrap().set_len(mebibytes << 20).unwrap();
        let mountpoint = folder.path().join("mnt");
        fs::create_dir(&mountpoint).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0", "-E", "nodiscard"]).arg(&file), "e2fsprogs");
        run(Command::new("mount").args(["-o", "loop"]).arg(&file).arg(&mountpoint), "mount");
        Self { mountpoint, _folder: folder }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.mountpoint
    }

    /// Makes it read-only, or writable again.
    pub(crate) fn read_only(&self, on: bool) {
        let option = if on { "remount,ro" } else { "remount,rw" };
        run(Command::new("mount").args(["-o", option]).arg(&self.mountpoint), "mount");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: whoever still holds a file on it is ended by its own guard.
        let _ = rustix::mount::unmount(&self.mountpoint, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Runs a program of this package, which has to succeed.
pub(crate) fn run(command: &mut Command, package: &str) {
    let name = command.get_program().to_string_lossy().into_owned();
    command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("cannot run `{name}`: {error}; install the Debian package {package}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
