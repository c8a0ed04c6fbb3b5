//! `config check` and `config show`.

use std::process::ExitCode;

use imagelet_node::{
    config::{ConfigError, Environment, Sources},
    failure::Failure,
    serve::check_files,
};
use imagelet_oci::check_registry_files;
use serde_json::{Map, Value, json};

use super::images_write::note;
use crate::{
    cli::{ConfigCommand, ServeArgs},
    output::{Table, or_dash, print},
    sources::{Context, sources},
};

pub(super) async fn run(command: ConfigCommand, context: &Context) -> Result<ExitCode, Failure> {
    let (arguments, is_check) = match command {
        ConfigCommand::Check { file, kubelet_config, kubelet_config_dir } => {
            (ServeArgs { config: file, kubelet_config, kubelet_config_dir, ..ServeArgs::default() }, true)
        }
        ConfigCommand::Show(arguments) => (*arguments, false),
    };
    let format = context.global.output;
    let invalid = |error: ConfigError| match error {
        ConfigError::Read { .. } => Failure::of(&error),
        ConfigError::Invalid(_) => Failure::of(&error).or_hint("`imagelet help configuration` lists all keys"),
    };
    if is_check {
        check(&arguments, &context.environment).map_err(invalid)?;
    }
    let sources = sources(&arguments, context)?;
    for warning in arguments.ignored_options(sources.has_node()) {
        note(&format!("warning: {warning}"));
    }
    let settings = sources.settings().map_err(invalid)?;
    let effective = sources.effective()?;
    if is_check {
        check_files(&settings).await?;
        let files = [
            ("kubeletConfig", &arguments.kubelet_config),
            ("kubeletConfigDir", &arguments.kubelet_config_dir),
            ("file", &arguments.config),
        ];
        let files: Vec<_> = files.into_iter().filter_map(|(key, file)| Some((key, file.as_ref()?))).collect();
        let mut result: Map<String, Value> = files.iter().map(|(key, file)| ((*key).to_owned(), json!(file))).collect();
        result.insert("valid".to_owned(), true.into());
        // These warnings are no errors: the daemon starts all the same, and each pull reports them, too.
        let warnings = check_registry_files(&settings.images.registry.hosts_dirs);
        for warning in &warnings {
            note(&format!("warning: {warning}"));
        }
        if !warnings.is_empty() {
            result.insert("warnings".to_owned(), json!(warnings));
        }
        let files: Vec<String> = files.iter().map(|(_, file)| file.display().to_string()).collect();
        let are = if files.len() == 1 { "is" } else { "are" };
        return Ok(print(format, &result, |out| writeln!(out, "{} {are} valid", files.join(" and ")))?);
    }
    Ok(print(format, &json!({ "settings": effective }), |out| {
        let mut table = Table::new(["KEY", "VALUE", "SOURCE"]).wide(true);
        for one in &effective {
            let value = one.value.as_str().map_or_else(|| one.value.to_string(), str::to_owned);
            table.row([one.key.as_str(), or_dash(&value), &one.source.to_string()]);
        }
        table.write(out)
    })?)
}

/// Fails with all errors together: invalid keys, and rules that the valid keys violate.
fn check(arguments: &ServeArgs, environment: &Environment) -> Result<(), ConfigError> {
    let mut sources = Sources::new(environment.clone());
    let kubelet = arguments.kubelet_config.as_deref().map(|file| sources.add_kubelet_file(file));
    let folder = arguments.kubelet_config_dir.as_deref().map(|folder| sources.add_kubelet_folder(folder));
    let own = arguments.config.as_deref().map(|file| sources.add_file(file));
    let outcomes = [kubelet, folder, own, Some(sources.violations())].into_iter().flatten();
    ConfigError::all(outcomes.filter_map(Result::err).collect())
}
