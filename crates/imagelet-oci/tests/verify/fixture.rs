//! Layers with one of everything, and a registry that notes what it is asked for.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    extract::{Path, State},
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use imagelet_core::image::Digest;
use tar::{Builder, EntryType, Header};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A layer in the making.
pub(crate) struct Layer(Builder<Vec<u8>>);

impl Layer {
    pub(crate) fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    fn add(mut self, kind: EntryType, path: &str, mode: u32, fill: impl FnOnce(&mut Header), bytes: &[u8]) -> Self {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_600_000_000);
        header.set_size(bytes.len() as u64);
        fill(&mut header);
        self.0.append_data(&mut header, path, bytes).expect("memory takes all");
        self
    }

    pub(crate) fn file(self, path: &str, bytes: &[u8]) -> Self {
        self.add(EntryType::Regular, path, 0o644, |_| {}, bytes)
    }

    pub(crate) fn directory(self, path: &str, mode: u32) -> Self {
        self.add(EntryType::Directory, path, mode, |_| {}, &[])
    }

    pub(crate) fn symlink(self, path: &str, target: &str) -> Self {
        self.add(EntryType::Symlink, path, 0o777, |header| header.set_link_name(target).expect("it fits"), &[])
    }

    pub(crate) fn hard_link(self, path: &str, target: &str) -> Self {
        self.add(EntryType::Link, path, 0o644, |header| header.set_link_name(target).expect("it fits"), &[])
    }

    pub(crate) fn fifo(self, path: &str) -> Self {
        self.add(EntryType::Fifo, path, 0o600, |_| {}, &[])
    }

    pub(crate) fn device(self, path: &str, major: u32, minor: u32) -> Self {
        let numbers = |header: &mut Header| {
            header.set_device_major(major).expect("ustar has them");
            header.set_device_minor(minor).expect("ustar has them");
        };
        self.add(EntryType::Char, path, 0o600, numbers, &[])
    }

    pub(crate) fn with_xattr(mut self, path: &str, name: &str, value: &[u8]) -> Self {
        let key = format!("SCHILY.xattr.{name}");
        self.0.append_pax_extensions([(key.as_str(), value)]).expect("memory takes all");
        self.file(path, b"marked")
    }

    /// A file of `size` bytes with data at one place only.
    pub(crate) fn sparse(mut self, path: &str, size: u64, offset: u64, data: &[u8]) -> Self {
        let size_text = size.to_string();
        let records = [
            ("GNU.sparse.major", "1"),
            ("GNU.sparse.minor", "0"),
            ("GNU.sparse.name", path),
            ("GNU.sparse.realsize", &size_text),
        ];
        self.0.append_pax_extensions(records.map(|(key, value)| (key, value.as_bytes()))).expect("memory takes all");
        let mut bytes = format!("2\n{offset}\n{}\n{size}\n0\n", data.len()).into_bytes();
        bytes.resize(512, 0);
        bytes.extend_from_slice(data);
        self.file("sparse-placeholder", &bytes)
    }

    pub(crate) fn tar(self) -> Vec<u8> {
        self.0.into_inner().expect("memory takes all")
    }
}

#[derive(Default)]
struct Content {
    /// By path below `/v2/`: media type and bytes.
    files: HashMap<String, (&'static str, Vec<u8>)>,
    asked: Vec<String>,
}

/// A registry on loopback.
pub(crate) struct TestRegistry {
    port: u16,
    content: Arc<Mutex<Content>>,
}

impl TestRegistry {
    pub(crate) async fn start() -> Self {
        let content = Arc::new(Mutex::new(Content::default()));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let router = Router::new().route("/v2/{*path}", axum::routing::get(serve)).with_state(Arc::clone(&content));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { port, content }
    }

    pub(crate) fn name(&self, name: &str) -> String {
        format!("127.0.0.1:{}/{name}", self.port)
    }

    /// What was asked for since the last time, sorted: `config`, `manifest`, `index`, or a layer's digest.
    pub(crate) fn asked(&self) -> Vec<String> {
        let mut asked = std::mem::take(&mut self.content.lock().expect("no panic").asked);
        asked.sort();
        asked
    }

    /// Serves an image behind an index; answers the digests of its layers, lowest first.
    pub(crate) fn image(&self, name: &str, tag: &str, layers: &[Vec<u8>]) -> Vec<Digest> {
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let digests: Vec<Digest> = layers.iter().map(|layer| Digest::of(layer)).collect();
        let json = |value: serde_json::Value| serde_json::to_vec(&value).expect("JSON");
        let texts: Vec<&str> = digests.iter().map(Digest::as_str).collect();
        let config = json(serde_json::json!({
            "architecture": architecture, "os": "linux", "rootfs": {"type": "layers", "diff_ids": texts},
        }));
        let described = |media_type: &str, bytes: &[u8]| {
            serde_json::json!({
                "mediaType": media_type, "digest": Digest::of(bytes).as_str(), "size": bytes.len(),
            })
        };
        let layer = "application/vnd.oci.image.layer.v1.tar";
        let manifest = json(serde_json::json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": described("application/vnd.oci.image.config.v1+json", &config),
            "layers": layers.iter().map(|bytes| described(layer, bytes)).collect::<Vec<_>>(),
        }));
        let mut entry = described(MANIFEST, &manifest);
        entry["platform"] = serde_json::json!({"os": "linux", "architecture": architecture});
        let index = json(serde_json::json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}));
        let mut content = self.content.lock().expect("no panic");
        let mut put = |path: String, kind, bytes: &[u8]| content.files.insert(path, (kind, bytes.to_vec()));
        for layer in layers {
            put(format!("{name}/blobs/{}", Digest::of(layer)), "layer", layer);
        }
        put(format!("{name}/blobs/{}", Digest::of(&config)), "config", &config);
        put(format!("{name}/manifests/{}", Digest::of(&manifest)), "manifest", &manifest);
        put(format!("{name}/manifests/{}", Digest::of(&index)), "index", &index);
        put(format!("{name}/manifests/{tag}"), "index", &index);
        digests
    }

    pub(crate) fn forget(&self, name: &str) {
        self.content.lock().expect("no panic").files.retain(|path, _| !path.starts_with(name));
    }
}

async fn serve(State(content): State<Arc<Mutex<Content>>>, Path(path): Path<String>) -> Response {
    let mut content = content.lock().expect("no panic");
    let Some((kind, bytes)) = content.files.get(&path).cloned() else {
        return (StatusCode::NOT_FOUND, r#"{"errors":[{"code":"MANIFEST_UNKNOWN"}]}"#).into_response();
    };
    let digest = path.rsplit('/').next().unwrap_or_default();
    content.asked.push(if kind == "layer" { digest.to_owned() } else { kind.to_owned() });
    let media_type = match kind {
        "manifest" => MANIFEST,
        "index" => INDEX,
        _ => "application/octet-stream",
    };
    ([(header::CONTENT_TYPE, media_type)], bytes).into_response()
}

/// Every regular file below a folder, by path from it.
pub(crate) fn files(root: &std::path::Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let entry = entry.expect("an entry");
            let kind = entry.file_type().expect("a type");
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() && entry.metadata().expect("metadata").len() < 1 << 20 {
                let path = entry.path().strip_prefix(root).expect("below it").display().to_string();
                found.insert(path, std::fs::read(entry.path()).expect("readable"));
            }
        }
    }
    found
}
