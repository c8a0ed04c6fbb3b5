//! Builds images layer by layer, and says what the merged tree has to be.

use std::io::Write as _;

use imagelet_core::image::Digest;

pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Bytes that an archive's header has for a name.
const NAME_BYTES: usize = 100;

/// How a layer is packed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
}

/// What one entry of a layer is.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Directory,
    File(Vec<u8>),
    Symlink(String),
    Hardlink(String),
    /// The device that takes everything, 1:3.
    NullDevice,
    /// A device of blocks, with its numbers.
    BlockDevice(u32, u32),
    Fifo,
    /// A file of this size that is zero but for these pieces; the archive has only them.
    Sparse(u64, Vec<(u64, Vec<u8>)>),
    /// Hides the lower layers' file of this path.
    Whiteout,
    /// Hides everything the lower layers have below this directory.
    Opaque,
}

/// One entry of a layer, in the order written.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) path: String,
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) owner: (u64, u64),
    pub(crate) mtime: u64,
    /// What the time has beside whole seconds.
    pub(crate) nanoseconds: u32,
    pub(crate) xattrs: Vec<(String, Vec<u8>)>,
}

/// A layer told entry by entry: `Layer::gzip().directory("etc", 0o755).file("etc/a", "text", 0o644)`.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) entries: Vec<Entry>,
    compression: Compression,
}

impl Layer {
    pub(crate) fn new(compression: Compression) -> Self {
        Self { entries: Vec::new(), compression }
    }

    pub(crate) fn gzip() -> Self {
        Self::new(Compression::Gzip)
    }

    pub(crate) fn directory(self, path: &str, mode: u32) -> Self {
        self.entry(path, Kind::Directory, mode)
    }

    pub(crate) fn file(self, path: &str, content: impl Into<Vec<u8>>, mode: u32) -> Self {
        self.entry(path, Kind::File(content.into()), mode)
    }

    pub(crate) fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(path, Kind::Symlink(target.to_owned()), 0o777)
    }

    /// Carries its target's metadata, as archivers write it.
    pub(crate) fn hardlink(self, path: &str, target: &str) -> Self {
        let linked = self.entries.iter().find(|entry| entry.path == target).cloned();
        let mut layer = self.entry(path, Kind::Hardlink(target.to_owned()), 0o644);
        if let Some(target) = linked {
            let link = layer.last();
            (link.mode, link.owner, link.mtime) = (target.mode, target.owner, target.mtime);
        }
        layer
    }

    pub(crate) fn null_device(self, path: &str) -> Self {
        self.entry(path, Kind::NullDevice, 0o666)
    }

    pub(crate) fn block_device(self, path: &str, major: u32, minor: u32) -> Self {
        self.entry(path, Kind::BlockDevice(major, minor), 0o660)
    }

    pub(crate) fn fifo(self, path: &str) -> Self {
        self.entry(path, Kind::Fifo, 0o622)
    }

    pub(crate) fn sparse(self, path: &str, size: u64, pieces: &[(u64, &[u8])]) -> Self {
        let pieces = pieces.iter().map(|(at, bytes)| (*at, bytes.to_vec())).collect();
        self.entry(path, Kind::Sparse(size, pieces), 0o644)
    }

    pub(crate) fn whiteout(self, path: &str) -> Self {
        self.entry(path, Kind::Whiteout, 0o644)
    }

    pub(crate) fn opaque(self, path: &str) -> Self {
        self.entry(path, Kind::Opaque, 0o644)
    }

    /// Gives the last entry an owner.
    pub(crate) fn owned_by(mut self, user: u64, group: u64) -> Self {
        self.last().owner = (user, group);
        self
    }

    /// Gives the last entry a time.
    pub(crate) fn modified(mut self, seconds: u64, nanoseconds: u32) -> Self {
        (self.last().mtime, self.last().nanoseconds) = (seconds, nanoseconds);
        self
    }

    /// Gives the last entry an extended attribute.
    pub(crate) fn xattr(mut self, name: &str, value: &[u8]) -> Self {
        self.last().xattrs.push((name.to_owned(), value.to_vec()));
        self
    }

    fn last(&mut self) -> &mut Entry {
        self.entries.last_mut().expect("an entry comes first")
    }

    fn entry(mut self, path: &str, kind: Kind, mode: u32) -> Self {
        let mtime = 1_700_000_000 + self.entries.len() as u64;
        let path = path.to_owned();
        self.entries.push(Entry { path, kind, mode, owner: (0, 0), mtime, nanoseconds: 0, xattrs: Vec::new() });
        self
    }

    /// The layer as an uncompressed tar, names written as they are.
    fn tar(&self) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for entry in &self.entries {
            append(&mut builder, entry);
        }
        builder.into_inner().unwrap()
    }

    fn media_type(&self, docker: bool) -> &'static str {
        match (self.compression, docker) {
            (Compression::None, false) => "application/vnd.oci.image.layer.v1.tar",
            (Compression::Gzip, false) => "application/vnd.oci.image.layer.v1.tar+gzip",
            (Compression::Zstd, false) => "application/vnd.oci.image.layer.v1.tar+zstd",
            (_, true) => "application/vnd.docker.image.rootfs.diff.tar.gzip",
        }
    }

    fn pack(&self, tar: &[u8]) -> Vec<u8> {
        match self.compression {
            Compression::None => tar.to_vec(),
            Compression::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(tar).unwrap();
                encoder.finish().unwrap()
            }
            Compression::Zstd => zstd::encode_all(tar, 1).unwrap(),
        }
    }
}

fn append(builder: &mut tar::Builder<Vec<u8>>, entry: &Entry) {
    let mut header = tar::Header::new_gnu();
    header.set_mode(entry.mode);
    header.set_uid(entry.owner.0);
    header.set_gid(entry.owner.1);
    header.set_mtime(entry.mtime);
    let (folder, name) = entry
        .path
        .rsplit_once('/')
        .map_or((String::new(), entry.path.as_str()), |(folder, name)| (format!("{folder}/"), name));
    let stored = stored(&entry.kind);
    let (path, content): (String, &[u8]) = match &entry.kind {
        Kind::Directory => (format!("{}/", entry.path), &[]),
        Kind::Whiteout => (format!("{folder}.wh.{name}"), &[]),
        Kind::Opaque => (format!("{}/.wh..wh..opq", entry.path), &[]),
        Kind::File(content) => (entry.path.clone(), content),
        Kind::Sparse(..) => (entry.path.clone(), &stored),
        Kind::Symlink(_) | Kind::Hardlink(_) | Kind::NullDevice | Kind::BlockDevice(..) | Kind::Fifo => {
            (entry.path.clone(), &[])
        }
    };
    let records = records(entry, &path);
    if !records.is_empty() {
        builder.append_pax_extensions(records.iter().map(|(name, value)| (name.as_str(), value.as_slice()))).unwrap();
    }
    header.set_entry_type(match &entry.kind {
        Kind::Directory => tar::EntryType::Directory,
        Kind::Symlink(_) => tar::EntryType::Symlink,
        Kind::Hardlink(_) => tar::EntryType::Link,
        Kind::NullDevice => tar::EntryType::Char,
        Kind::BlockDevice(..) => tar::EntryType::Block,
        Kind::Fifo => tar::EntryType::Fifo,
        Kind::File(_) | Kind::Sparse(..) | Kind::Whiteout | Kind::Opaque => tar::EntryType::Regular,
    });
    if let Kind::Symlink(target) | Kind::Hardlink(target) = &entry.kind {
        write_name(&mut header.as_gnu_mut().unwrap().linkname, target);
    }
    let device = match entry.kind {
        Kind::NullDevice => Some((1, 3)),
        Kind::BlockDevice(major, minor) => Some((major, minor)),
        _ => None,
    };
    if let Some((major, minor)) = device {
        header.set_device_major(major).unwrap();
        header.set_device_minor(minor).unwrap();
    }
    // Not `set_path`: hostile names must reach the archive as they are.
    write_name(&mut header.as_gnu_mut().unwrap().name, &path);
    header.set_size(content.len() as u64);
    header.set_cksum();
    builder.append(&header, content).unwrap();
}

/// Where a name does not fit, a record has the whole of it.
fn write_name(field: &mut [u8], name: &str) {
    let length = name.len().min(field.len() - 1);
    field[..length].copy_from_slice(&name.as_bytes()[..length]);
}

/// What the archive's header has no room for.
fn records(entry: &Entry, path: &str) -> Vec<(String, Vec<u8>)> {
    let xattrs = entry.xattrs.iter().map(|(name, value)| (format!("SCHILY.xattr.{name}"), value.clone()));
    let mut records: Vec<(String, Vec<u8>)> = xattrs.collect();
    let mut record = |name: &str, value: String| records.push((name.to_owned(), value.into_bytes()));
    if entry.nanoseconds != 0 {
        record("mtime", format!("{}.{:09}", entry.mtime, entry.nanoseconds));
    }
    if let Kind::Sparse(size, _) = entry.kind {
        record("GNU.sparse.major", "1".into());
        record("GNU.sparse.minor", "0".into());
        record("GNU.sparse.name", path.into());
        record("GNU.sparse.realsize", size.to_string());
    } else if path.len() >= NAME_BYTES {
        record("path", path.into());
    }
    if let Kind::Symlink(target) | Kind::Hardlink(target) = &entry.kind
        && target.len() >= NAME_BYTES
    {
        record("linkpath", target.clone());
    }
    records
}

/// A sparse file as GNU's format 1.0 has it: the map in numbers, then the pieces.
fn stored(kind: &Kind) -> Vec<u8> {
    let Kind::Sparse(size, pieces) = kind else { return Vec::new() };
    // An empty piece at the end says how long the file is.
    let ranges = pieces.iter().map(|(at, bytes)| (*at, bytes.len())).chain([(*size, 0)]);
    let ranges: Vec<String> = ranges.map(|(at, length)| format!("{at}\n{length}\n")).collect();
    let mut stored = format!("{}\n{}", ranges.len(), ranges.concat()).into_bytes();
    stored.resize(stored.len().next_multiple_of(512), 0);
    for (_, bytes) in pieces {
        stored.extend(bytes);
    }
    stored
}

/// Bytes with their digest and media type.
#[derive(Clone, Debug)]
pub(crate) struct Blob {
    pub(crate) bytes: Vec<u8>,
    pub(crate) digest: String,
    pub(crate) media_type: String,
}

impl Blob {
    pub(crate) fn new(bytes: Vec<u8>, media_type: &str) -> Self {
        let digest = Digest::of(&bytes).as_str().to_owned();
        Self { bytes, digest, media_type: media_type.to_owned() }
    }

    fn descriptor(&self) -> serde_json::Value {
        serde_json::json!({ "mediaType": self.media_type, "digest": self.digest, "size": self.bytes.len() })
    }
}

/// An image as a registry holds it.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) layers: Vec<Blob>,
    pub(crate) config: Blob,
    pub(crate) manifest: Blob,
}

impl Image {
    pub(crate) fn oci(layers: &[Layer]) -> Self {
        Self::build(layers, OCI_MANIFEST, "application/vnd.oci.image.config.v1+json")
    }

    /// As Docker writes it; its layers are gzip.
    pub(crate) fn docker(layers: &[Layer]) -> Self {
        Self::build(layers, DOCKER_MANIFEST, "application/vnd.docker.container.image.v1+json")
    }

    /// An index of images: one for this machine, and the others for machines of these kinds.
    pub(crate) fn index(&self, others: &[(&Image, &str)]) -> Blob {
        let images = std::iter::once((self, architecture())).chain(others.iter().copied());
        let entries = images.map(|(image, architecture)| {
            let mut entry = image.manifest.descriptor();
            entry["platform"] = serde_json::json!({ "architecture": architecture, "os": "linux" });
            entry
        });
        let manifests: Vec<_> = entries.collect();
        let index = serde_json::json!({ "schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests });
        Blob::new(serde_json::to_vec(&index).unwrap(), OCI_INDEX)
    }

    /// One file `/marker` with this text and `/payload` of this many incompressible bytes.
    pub(crate) fn marked(text: &str, payload: usize) -> Self {
        Self::oci(&[Layer::gzip().file("marker", text, 0o644).file("payload", noise(text, payload), 0o644)])
    }

    /// The static busybox with links for its applets: what pods run.
    pub(crate) fn busybox(marker: &str) -> Self {
        let program = ["/usr/bin/busybox", "/bin/busybox"].iter().find_map(|path| std::fs::read(path).ok());
        let program = program.expect("busybox is missing: install the Debian package busybox-static");
        let mut layer =
            Layer::gzip().directory("bin", 0o755).directory("tmp", 0o1777).file("bin/busybox", program, 0o755);
        for applet in ["sh", "sleep", "true"] {
            layer = layer.symlink(&format!("bin/{applet}"), "busybox");
        }
        Self::oci(&[layer, Layer::gzip().file("marker", marker, 0o644)])
    }

    /// Puts another image's layers on top.
    pub(crate) fn append(&mut self, other: Image) {
        let [mut config, mut manifest] = [&self.config, &self.manifest]
            .map(|blob| serde_json::from_slice::<serde_json::Value>(&blob.bytes).unwrap());
        let above: serde_json::Value = serde_json::from_slice(&other.config.bytes).unwrap();
        let diff_ids = config["rootfs"]["diff_ids"].as_array_mut().unwrap();
        diff_ids.extend(above["rootfs"]["diff_ids"].as_array().unwrap().iter().cloned());
        self.config = Blob::new(serde_json::to_vec(&config).unwrap(), &self.config.media_type);
        self.layers.extend(other.layers);
        manifest["config"] = self.config.descriptor();
        manifest["layers"] = self.layers.iter().map(Blob::descriptor).collect();
        self.manifest = Blob::new(serde_json::to_vec(&manifest).unwrap(), &self.manifest.media_type);
    }

    /// The id that runtimes give it.
    pub(crate) fn id(&self) -> &str {
        &self.config.digest
    }

    /// The digests of its layers' uncompressed tars, lowest first.
    pub(crate) fn diff_ids(&self) -> Vec<String> {
        let config: serde_json::Value = serde_json::from_slice(&self.config.bytes).unwrap();
        let diff_ids = config["rootfs"]["diff_ids"].as_array().expect("a configuration has diff ids");
        diff_ids.iter().map(|digest| digest.as_str().expect("a text").to_owned()).collect()
    }

    /// The same image with this label in its configuration.
    pub(crate) fn labelled(self, name: &str, value: &str) -> Self {
        self.configured(|config| config["config"]["Labels"][name] = value.into())
    }

    /// The same image with another configuration, wrong or right.
    pub(crate) fn configured(mut self, edit: impl FnOnce(&mut serde_json::Value)) -> Self {
        let mut config: serde_json::Value = serde_json::from_slice(&self.config.bytes).unwrap();
        edit(&mut config);
        self.config = Blob::new(serde_json::to_vec(&config).unwrap(), &self.config.media_type);
        let descriptor = self.config.descriptor();
        self.with_manifest(|manifest| manifest["config"] = descriptor)
    }

    /// The same image with another manifest text, wrong or right.
    pub(crate) fn with_manifest(mut self, edit: impl FnOnce(&mut serde_json::Value)) -> Self {
        let mut manifest = serde_json::from_slice(&self.manifest.bytes).unwrap();
        edit(&mut manifest);
        self.manifest = Blob::new(serde_json::to_vec(&manifest).unwrap(), &self.manifest.media_type);
        self
    }

    fn build(layers: &[Layer], manifest_type: &str, config_type: &str) -> Self {
        let tars: Vec<Vec<u8>> = layers.iter().map(Layer::tar).collect();
        let diff_ids: Vec<String> = tars.iter().map(|tar| Digest::of(tar).as_str().to_owned()).collect();
        let config = serde_json::json!({
            "architecture": architecture(), "os": "linux",
            "config": { "Env": ["PATH=/bin"], "Cmd": ["/bin/sleep", "3600"] },
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        let config = Blob::new(serde_json::to_vec(&config).unwrap(), config_type);
        let docker = manifest_type == DOCKER_MANIFEST;
        let layers: Vec<Blob> =
            layers.iter().zip(&tars).map(|(layer, tar)| Blob::new(layer.pack(tar), layer.media_type(docker))).collect();
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": manifest_type, "config": config.descriptor(),
            "layers": layers.iter().map(Blob::descriptor).collect::<Vec<_>>(),
        });
        let manifest = Blob::new(serde_json::to_vec(&manifest).unwrap(), manifest_type);
        Self { layers, config, manifest }
    }
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Bytes that do not compress, the same for the same seed.
pub(crate) fn noise(seed: &str, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A small seeded generator (xorshift64*).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: &str) -> Self {
        let hash = seed
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Self(hash | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
