//! What is reported of pulls and removals afterwards: by events, `why`, `status` and metrics, over restarts.

use std::fs;

use imagelet_core::{image::ImageSpec, ports::ImageService as _};
use serde_json::Value;

use crate::{
    images::Image,
    program::{Daemon, write_store_config},
    relay::connect,
    testbed::{Registry, scratch},
};

fn pod(image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: shop, uid: uid-web}}\nspec:\n  containers:\n  \
         - {{name: app, image: '{image}', imagePullPolicy: IfNotPresent}}\n"
    )
}

fn whats(why: &Value) -> Vec<&str> {
    why["images"][0]["history"].as_array().unwrap().iter().map(|it| it["what"].as_str().unwrap()).collect()
}

#[test]
fn why_tells_failed_pulls_over_a_restart_and_the_back_off_only_while_it_lasts() {
    let (registry, folder) = (Registry::start(), scratch());
    let config = write_store_config(folder.path(), "");
    let store = folder.path().join("store");
    let arguments = ["--store", store.to_str().unwrap(), "--config", &config];
    let image = format!("{}/web:v1", registry.address());
    let manifest = folder.path().join("pod.yaml");
    fs::write(&manifest, pod(&image)).unwrap();
    let ensure = ["ensure", "-f", manifest.to_str().unwrap(), "-o", "json"];
    {
        let daemon = Daemon::start(folder.path(), arguments);
        assert_eq!(daemon.run(ensure).code, 1);
        let why = daemon.run(["why", &image, "-o", "json"]).json();
        assert_eq!(whats(&why), ["pull failed"], "{why:#}");
        let held = &why["images"][0]["heldBack"][0];
        assert!(held["remainingMs"].as_u64().unwrap() > 0, "{why:#}");
        let text = daemon.run(["why", &image]).ok();
        assert!(text.contains("Back-off:") && text.contains("for pod shop/web"), "{text}");
    }
    let daemon = Daemon::start(folder.path(), arguments);
    let why = daemon.run(["why", &image, "-o", "json"]).json();
    assert_eq!(
        (whats(&why), &why["images"][0]["heldBack"]),
        (vec!["pull failed"], &Value::Array(Vec::new())),
        "{why:#}"
    );
    registry.push("web:v1", &Image::busybox("web"));
    daemon.run(ensure).ok();
    let why = daemon.run(["why", &image, "-o", "json"]).json();
    assert_eq!(whats(&why), ["pull failed", "pulled"], "{why:#}");
}

#[test]
fn a_removal_by_id_is_reported_with_the_names_of_the_image() {
    let (registry, folder) = (Registry::start(), scratch());
    let config = write_store_config(folder.path(), "");
    let store = folder.path().join("store");
    let daemon = Daemon::start(folder.path(), ["--store", store.to_str().unwrap(), "--config", &config]);
    let names = ["web", "spare"].map(|name| registry.push(&format!("{name}:v1"), &Image::busybox(name)));
    for name in &names {
        daemon.run(["pull", name]).ok();
    }
    let id =
        |name: &String| daemon.run(["inspect", name, "-o", "json"]).json()["image"]["id"].as_str().unwrap().to_owned();
    let (web, spare) = (id(&names[0]), id(&names[1]));
    let removed = daemon.run(["rm", &web]).ok();
    assert_eq!(removed.trim(), format!("{web}  {}", names[0]));
    let why = daemon.run(["why", &web, "-o", "json"]).json();
    let last = why["images"][0]["history"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["what"], &last["names"][0]), (&"removed".into(), &names[0].clone().into()), "{why:#}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let images = connect(&daemon).await;
        images.remove(&ImageSpec::new(spare.clone())).await.unwrap();
    });
    let events = daemon.run(["events"]).ok();
    assert!(events.contains(&format!("Removed image `{}` ({spare}) as asked over CRI", names[1])), "{events}");
}
