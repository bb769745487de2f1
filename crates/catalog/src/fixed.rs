//! A catalog of the manifests that a worker was started with. It reads no directory and never
//! reloads a manifest.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use arc_swap::{ArcSwap, ArcSwapOption};

use super::{Catalog, Error, Files, Loaded, Models, Shared, built, manifest};
use orrery_runners::options::Dependencies;

impl Catalog {
    /// Opens the catalog of these manifests, without the built-in models. `concurrency`, if given,
    /// replaces the value in each manifest.
    ///
    /// # Errors
    /// Returns all errors in all files, including an error for each file whose slug another file
    /// already has.
    pub fn of_files(
        paths: &[PathBuf],
        concurrency: Option<usize>,
        dependencies: Dependencies,
    ) -> Result<Self, Vec<Error>> {
        let (mut files, mut models) = (Files::new(), Models::new());
        let mut errors = Vec::new();
        for path in paths {
            let loaded = manifest::read(path).and_then(|mut manifest| {
                manifest.concurrency = concurrency.unwrap_or(manifest.concurrency);
                let model = built(&manifest, path, &dependencies)?;
                Ok(Loaded { manifest: Arc::new(manifest), model: Arc::new(model) })
            });
            match loaded {
                Ok(loaded) => {
                    let slug = loaded.model.slug.clone();
                    if models.contains_key(&slug) {
                        let message = format!("another file also has the slug '{slug}'");
                        errors.push(Error { file: path.clone(), line: 0, column: 0, message });
                    }
                    models.insert(slug, Arc::clone(&loaded.model));
                    files.insert(path.clone(), loaded);
                }
                Err(found) => errors.extend(found),
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let shared = Shared {
            folder: PathBuf::new(),
            unreadable: ArcSwapOption::empty(),
            models: ArcSwap::from_pointee(models),
            unserved: ArcSwap::default(),
            files: Mutex::new(files),
            dependencies,
        };
        Ok(Self { shared: Arc::new(shared) })
    }
}
