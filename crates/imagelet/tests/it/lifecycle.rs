//! One image's way through the embedded store: pulled, mounted, pulled again, removed.

use std::fs;

use crate::{
    fake_registry::FakeRegistry,
    images::{Compression, Image, Layer, noise},
    program::{Daemon, program, run, with_store},
    testbed::{Disk, Registry, require_root, scratch},
    tree,
};

/// A removed image may leave this much behind: indexes, not content.
const REST_MAX: u64 = 1 << 20;

/// The last layer changes directories it has no entry for: they keep the metadata a lower layer gave them.
fn layers() -> Vec<Layer> {
    vec![
        Layer::new(Compression::None)
            .directory("etc", 0o755)
            .file("etc/passwd", "root:x:0:0::/root:/bin/sh\n", 0o644)
            .file("etc/shadow", "root:*:\n", 0o640)
            .owned_by(0, 42)
            .directory("etc/conf.d", 0o750)
            .owned_by(1000, 1000)
            .file("etc/conf.d/old", "old", 0o600)
            .file("etc/conf.d/older", "older", 0o600)
            .directory("data", 0o755)
            .file("data/gone", "gone", 0o644)
            .file("data/below", "below", 0o644)
            .directory("data/deep", 0o711)
            .file("data/deep/gone", "gone too", 0o644)
            .directory("swap", 0o755)
            .file("swap/file", "a file below a directory that becomes a file", 0o644),
        Layer::gzip()
            .directory("bin", 0o755)
            .file("bin/tool", noise("tool", 3_000_000), 0o4755)
            .hardlink("bin/tool-again", "bin/tool")
            .symlink("bin/tool-link", "tool")
            .symlink("bin/dangling", "/nowhere/at/all")
            .file("bin/capable", "capable", 0o755)
            .xattr("user.note", b"kept\0as it is")
            .directory("tmp", 0o1777)
            .whiteout("data/gone")
            .whiteout("data/deep"),
        Layer::new(Compression::Zstd)
            .file("etc/conf.d/new", "new", 0o640)
            .opaque("etc/conf.d")
            .whiteout("swap")
            .file("swap", "now a file", 0o644)
            .directory("data", 0o700)
            .file("data/gone", "back again", 0o604),
    ]
}

#[test]
fn an_image_is_pulled_mounted_and_removed_without_a_trace() {
    require_root("mounting");
    let (registry, disk) = (Registry::start(), Disk::new(256));
    let store = disk.path().join("store");
    let layers = layers();
    let image = Image::oci(&layers);
    let name = registry.push("app:v1", &image);
    with_store(&store, ["pin", "nothing"]).ok();
    let before = tree::disk_usage(&store);

    assert_eq!(with_store(&store, ["pull", &name]).ok().trim(), image.id());
    let mountpoint = scratch();
    let target = mountpoint.path().to_str().unwrap();
    with_store(&store, ["mount", &name, target]).ok();
    let found = tree::read(mountpoint.path());
    let refused = fs::write(mountpoint.path().join("etc/passwd"), "changed").is_err();
    with_store(&store, ["unmount", target]).ok();
    tree::assert_same(&found, &tree::merged(&layers));
    assert!(refused, "a mount without `--rw` took a write");

    let fetched = registry.blob_requests();
    assert!(fetched >= image.layers.len(), "the registry's log shows its requests");
    assert_eq!(with_store(&store, ["pull", &name]).ok().trim(), image.id());
    assert_eq!(with_store(&store, ["pull", "--policy", "Always", &name]).ok().trim(), image.id());
    assert_eq!(registry.blob_requests(), fetched, "a present image is fetched again");

    with_store(&store, ["rm", &name]).ok();
    assert_eq!(with_store(&store, ["inspect", "-q", &name]).code, 1);
    let after = tree::disk_usage(&store);
    assert!(after <= before + REST_MAX, "{before} bytes before, {after} after the removal");
}

#[test]
fn a_layer_that_two_images_share_is_fetched_once() {
    let registry = FakeRegistry::start();
    let base = Layer::gzip().file("base", noise("base", 500_000), 0o644);
    let first = Image::oci(&[base.clone(), Layer::gzip().file("one", "1", 0o644)]);
    let second = Image::docker(&[base, Layer::gzip().file("two", "2", 0o644)]);
    let (one, two) = (registry.put("one:v1", &first), registry.put("two:v1", &second));
    let folder = scratch();
    with_store(folder.path(), ["pull", &one]).ok();
    with_store(folder.path(), ["pull", &two]).ok();
    let shared = &first.layers[0].digest;
    assert_eq!(shared, &second.layers[0].digest);
    let fetched = registry.requests().into_iter().filter(|request| request.ends_with(shared.as_str()));
    assert_eq!(fetched.collect::<Vec<_>>(), [format!("GET /v2/one/blobs/{shared}")]);

    with_store(folder.path(), ["rm", &one]).ok();
    let mountpoint = scratch();
    require_root("mounting");
    let target = mountpoint.path().to_str().unwrap();
    with_store(folder.path(), ["mount", &two, target]).ok();
    let names: Vec<String> = tree::read(mountpoint.path()).into_keys().collect();
    with_store(folder.path(), ["unmount", target]).ok();
    assert_eq!(names, ["base", "two"]);
}

#[test]
fn an_image_of_one_platform_is_chosen_from_an_index() {
    let registry = FakeRegistry::start();
    let here = Image::marked("here", 1000);
    let there = Image::marked("there", 1000);
    registry.put("multi:here", &here);
    registry.put("multi:there", &there);
    let own = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    let entry = |image: &Image, architecture: &str| {
        serde_json::json!({
            "mediaType": image.manifest.media_type, "digest": image.manifest.digest,
            "size": image.manifest.bytes.len(), "platform": { "os": "linux", "architecture": architecture },
        })
    };
    let media_type = "application/vnd.oci.image.index.v1+json";
    let index = serde_json::json!({
        "schemaVersion": 2, "mediaType": media_type, "manifests": [entry(&there, "s390x"), entry(&here, own)],
    });
    let index = serde_json::to_vec(&index).unwrap();
    registry.answer("/v2/multi/manifests/v1", crate::fake_registry::Answer::ok(media_type, &index));
    let folder = scratch();
    assert_eq!(with_store(folder.path(), ["pull", &registry.name("multi:v1")]).ok().trim(), here.id());
}

#[test]
fn a_cross_built_image_is_pulled_by_its_index_with_a_warning_by_every_way_and_is_as_good_as_others() {
    let (registry, folder) = (FakeRegistry::start(), scratch());
    let image = Image::marked("cross", 1000).configured(|config| config["architecture"] = "s390x".into());
    let name = registry.put_index("cross:v1", &image, &[(&Image::marked("other", 1000), "riscv64")]);
    let own = format!("linux/{}", if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" });
    let at = |part: &str| folder.path().join(part);
    let warning = format!("warning: the image is for `linux/s390x`, not for `{own}`; it is taken, since its index");
    for (part, platform) in [("by-node", &[][..]), ("by-platform", &["--platform", &own])] {
        let pulled = with_store(&at(part), [&["pull", &name], platform].concat());
        assert_eq!(pulled.stderr.matches(&warning).count(), 1, "{}", pulled.stderr);
        assert_eq!(pulled.ok().trim(), image.id());
        with_store(&at(part), ["verify"]).ok();
        with_store(&at(part), ["inspect", "-q", &name]).ok();
    }
    let doctor = with_store(&at("by-node"), ["doctor", &name]).ok();
    assert!(doctor.contains(&format!("{own}, by the index; the image is for `linux/s390x`")), "{doctor}");

    let daemon = Daemon::start(folder.path(), ["--store", at("store").to_str().unwrap()]);
    let over_cri = |command: &str| run(program().args(["--endpoint", &daemon.endpoint(), command, "-q", &name]));
    assert_eq!(over_cri("pull").ok().trim(), image.id());
    over_cri("inspect").ok();
    let again = daemon.run(["pull", "--policy", "Always", &name]);
    assert_eq!(again.stderr.matches(&warning).count(), 1, "{}", again.stderr);
    assert_eq!(again.ok().trim(), image.id());
}

#[test]
fn a_name_goes_alone_and_the_image_with_its_last() {
    let registry = FakeRegistry::start();
    let image = Image::marked("tagged", 1000);
    let (one, two) = (registry.put("app:one", &image), registry.put("app:two", &image));
    let folder = scratch();
    with_store(folder.path(), ["pull", &one, &two]).ok();
    with_store(folder.path(), ["untag", &one]).ok();
    assert_eq!(with_store(folder.path(), ["inspect", "-q", &one]).code, 1);
    assert_eq!(with_store(folder.path(), ["inspect", "-q", &two]).code, 0);
    with_store(folder.path(), ["rm", &two]).ok();
    assert_eq!(with_store(folder.path(), ["inspect", "-q", image.id()]).code, 1);
}
