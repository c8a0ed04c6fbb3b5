//! A pod's runtime class: its handler goes with the images that the runtime is asked for.

use std::fs;

use crate::{
    program::{Daemon, write_store_config},
    scripted::{Runtime, Script, image},
    testbed::scratch,
};

#[test]
fn the_handler_of_a_pods_runtime_class_goes_with_its_images() {
    let folder = scratch();
    let names = ["reg.test/kata:v1", "reg.test/plain:v1", "reg.test/unknown:v1"];
    let offered = names.iter().map(|name| ((*name).to_owned(), image(name, 1000))).collect();
    let runtime = Runtime::start(folder.path(), Script { offered, ..Script::default() });
    let store = format!("directory: {}", folder.path().join("store").display());
    let config = write_store_config(folder.path(), &store);
    let daemon = Daemon::start(folder.path(), ["--config", &config, "--runtime-endpoint", &runtime.endpoint()]);
    let pod = |name: &str, class: &str| {
        format!(
            "---\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  {class}\n  containers: [{{name: app, image: 'reg.test/{name}:v1'}}]\n"
        )
    };
    let class = "---\napiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: isolated}\nhandler: kata-qemu\n";
    let text = pod("kata", "runtimeClassName: isolated")
        + &pod("plain", "")
        + class
        + &pod("unknown", "runtimeClassName: gone");
    let path = folder.path().join("bundle.yaml");
    fs::write(&path, text).unwrap();
    let outcome = daemon.run(["ensure", "-f", path.to_str().unwrap()]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let mut asked: Vec<(String, String)> = runtime.with(|script| {
        let specs = script.asked.iter().filter_map(|request| request.image.clone());
        specs.map(|spec| (spec.image, spec.runtime_handler)).collect()
    });
    asked.sort();
    let wanted = [(names[0], "kata-qemu"), (names[1], ""), (names[2], "")];
    assert_eq!(asked, wanted.map(|(name, handler)| (name.to_owned(), handler.to_owned())));
    let note = "the runtime class `gone` of the pod `default/unknown` was not given with -f";
    assert!(outcome.stderr.contains(note), "{}", outcome.stderr);
}
