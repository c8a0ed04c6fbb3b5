//! The examples of the library, run as `docs/library.md` shows them.

use std::fs;

use imagelet_core::testing::conformance;

use crate::{
    images::Image,
    source::repository,
    testbed::{Containerd, Registry, scratch},
};

#[allow(dead_code, reason = "`main` is the program's")]
#[path = "../../examples/custom_image_service.rs"]
mod custom_image_service;
#[allow(dead_code, reason = "`main` is the program's")]
#[path = "../../examples/embedded_store.rs"]
mod embedded_store;
#[allow(dead_code, reason = "`main` is the program's")]
#[path = "../../examples/ensure_over_containerd.rs"]
mod ensure_over_containerd;

use custom_image_service::MemoryStore;

fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(work)
}

#[test]
fn a_library_caller_ensures_an_image_over_containerd() {
    let (registry, folder) = (Registry::start(), scratch());
    let image = Image::marked("web", 100_000);
    let name = registry.push("web:v1", &image);
    let containerd = Containerd::start(folder.path(), &registry);
    let endpoint = containerd.endpoint();
    let socket = endpoint.strip_prefix("unix://").unwrap_or(&endpoint).as_ref();
    let lines = wait(ensure_over_containerd::run(&folder.path().join("state"), socket, &[name.clone(), name.clone()]));
    let lines = lines.unwrap();
    assert!(lines[0].starts_with(&format!("{name}: {} (Pulled", image.id())), "{lines:?}");
    assert_eq!(lines[1], format!("{name}: {} (AlreadyPresent)", image.id()));
}

#[test]
fn a_library_caller_pulls_into_a_store_of_its_own_and_plans_a_collection() {
    let (registry, folder) = (Registry::start(), scratch());
    let name = registry.push("app:v1", &Image::marked("app", 100_000));
    let lines = wait(embedded_store::run(folder.path(), std::slice::from_ref(&name))).unwrap();
    assert!(!lines[0].starts_with("0 "), "{lines:?}");
    assert!(lines[1].starts_with(&format!("{name}: ")), "{lines:?}");
    assert!(lines[2].starts_with(&format!("a collection would remove {name}: ")), "{lines:?}");
    assert_eq!(lines.len(), 3);
}

#[test]
fn a_store_of_a_library_caller_keeps_the_contract_of_image_services() {
    let images = conformance::PromisedImages {
        first: "registry.example/app:v1".to_owned(),
        first_again: "registry.example/app:again".to_owned(),
        second: "registry.example/web:v1".to_owned(),
        absent: "registry.example/absent:v1".to_owned(),
        reports_progress: false,
        untags: false,
        reports_layers: false,
        reports_configs: false,
    };
    let offered = [(images.first.as_str(), "one"), (images.first_again.as_str(), "one"), (&images.second, "two")];
    wait(conformance::run(&MemoryStore::new(offered), &images));
    let asked = [images.first.clone(), images.first.clone(), images.absent.clone()];
    let lines = wait(custom_image_service::run(MemoryStore::new(offered), &asked));
    assert!(lines[0].contains(": Pulled {") && lines[1].ends_with(": AlreadyPresent"), "{lines:?}");
    assert!(lines[2].contains("ErrImagePull") && lines[2].contains("has no image"), "{lines:?}");
}

#[test]
fn the_page_for_library_users_shows_each_example_and_names_only_what_exists() {
    let page = fs::read_to_string(repository().join("docs/library.md")).unwrap();
    for example in fs::read_dir(repository().join("crates/imagelet/examples")).unwrap() {
        let name = example.unwrap().file_name().into_string().unwrap();
        assert!(page.contains(&format!("crates/imagelet/examples/{name}")), "{name} is not on the page");
    }
}
