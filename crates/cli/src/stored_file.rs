//! `orrery file`: lists, shows, uploads, downloads and deletes the files of an organization.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::Subcommand;
use futures_util::stream;

use super::listing::{Kind, Owner};
use super::output::{self, Column};
use super::{Shape, service, values};
use orrery_config::Config;
use orrery_domain::file::UNKNOWN_TYPE;
use orrery_domain::ids::{ExecutionId, FileId};
use orrery_http::Body;
use orrery_http::body::{self, BoxError};
use orrery_runtime::{new_id, regular_file};

/// The number of bytes of a file to read at a time.
const PIECE_BYTES: usize = 256 * 1024;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the files of an organization, newest first
    List {
        /// The maximum number of files
        #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = values::count)]
        limit: u32,
        #[command(flatten)]
        owner: Owner,
        #[command(flatten)]
        shape: Shape,
    },
    /// Show one file, as JSON, with a link to its contents
    Show(Known),
    /// Upload a file and print its URL, which models accept as input
    Upload {
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The content type, such as image/png [default: from the extension]
        #[arg(long = "type", value_name = "TYPE")]
        content_type: Option<String>,
        #[command(flatten)]
        owner: Owner,
        #[command(flatten)]
        shape: Shape,
    },
    /// Write the contents of a file to standard output or into a new file
    Download {
        #[command(flatten)]
        file: Known,
        /// The file to create
        #[arg(long, value_name = "FILE")]
        into: Option<PathBuf>,
    },
    /// Delete a file
    Delete(Known),
}

/// A stored file.
#[derive(Debug, clap::Args)]
pub(super) struct Known {
    /// The id of the file
    #[arg(value_name = "ID", value_parser = values::id::<FileId>)]
    file: FileId,
    #[command(flatten)]
    owner: Owner,
}

const FILES: Kind = Kind {
    path: "/api/base/v1/files",
    list: "files",
    id: "id",
    name: "filename",
    noun: "file",
    command: "orrery file list",
    page: 100,
    fields: &[
        (Column::Text("ID"), &["/id"]),
        (Column::Text("NAME"), &["/filename"]),
        (Column::Text("TYPE"), &["/content_type"]),
        (Column::Number("BYTES"), &["/size"]),
        (Column::Text("FROM"), &["/execution_id", "/source"]),
        (Column::Text("CREATED"), &["/created_at"]),
        (Column::Text("EXPIRES"), &["/expires_at"]),
    ],
};

pub(super) async fn run(command: Command, config: &Config) -> anyhow::Result<()> {
    let admin = service::admin(config).await?;
    let path_of = |file: FileId| format!("{}/{file}", FILES.path);
    match command {
        Command::List { limit, owner, shape } => {
            let most = usize::try_from(limit)?;
            FILES.show(FILES.all(&owner.of(admin), most).await?, shape)
        }
        Command::Show(Known { file, owner }) => {
            output::json(&owner.of(admin).get(&path_of(file)).await?)
        }
        Command::Upload { file, content_type, owner, shape } => {
            let content_type = content_type.as_deref().unwrap_or_else(|| type_of(&file));
            let (boundary, form) = form(&file, content_type)?;
            let made = owner.of(admin).post_form(FILES.path, &boundary, form).await?;
            if shape.json {
                return output::json(&made);
            }
            let field = |name: &str| made.get(name).and_then(|value| value.as_str());
            output::note(&format!("File {} is stored.", field("id").unwrap_or_default()));
            output::line(field("url").unwrap_or_default())
        }
        Command::Download { file: Known { file, owner }, into } => {
            let admin = owner.of(admin);
            let path = format!("{}/content", path_of(file));
            match into {
                None => admin.download(&path, &mut io::stdout().lock(), &mut |_| {}).await,
                Some(into) => {
                    let shown = into.display();
                    let made = fs::File::create_new(&into);
                    let mut made = made.with_context(|| format!("{shown} cannot be created"))?;
                    admin.download(&path, &mut made, &mut |_| {}).await?;
                    made.sync_all().with_context(|| format!("{shown} cannot be written"))
                }
            }
        }
        Command::Delete(Known { file, owner }) => {
            owner.of(admin).delete(&path_of(file)).await?;
            output::note(&format!("File {file} is deleted."));
            Ok(())
        }
    }
}

/// Returns the content type for a file's extension.
fn type_of(file: &Path) -> &'static str {
    mime_guess::from_path(file).first_raw().unwrap_or(UNKNOWN_TYPE)
}

/// Returns a form with the file, and its boundary. The file is read in pieces while the form is
/// sent.
fn form(path: &Path, content_type: &str) -> anyhow::Result<(String, Body)> {
    let shown = path.display();
    let file = regular_file::open(path).with_context(|| format!("{shown} cannot be read"))?;
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(name) = name.filter(|name| !name.contains(is_special)) else {
        bail!("{shown}: the name of the file must be text without quotes and control characters");
    };
    if content_type.contains(is_special) {
        bail!("--type must be a content type, such as image/png");
    }
    let boundary = format!("orrery-{}", new_id::<ExecutionId>());
    let head = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
         Content-Type: {content_type}\r\n\r\n"
    );
    let tail = format!("\r\n--{boundary}--\r\n");
    let pieces = Pieces { head: Some(head), file: Some(file), tail: Some(tail) };
    let pieces = stream::unfold(pieces, |mut pieces| async move {
        let piece = pieces.next().transpose()?;
        Some((piece.map_err(BoxError::from), pieces))
    });
    Ok((boundary, body::stream(pieces)))
}

fn is_special(letter: char) -> bool {
    letter.is_control() || matches!(letter, '"' | '\\')
}

/// The parts of a form that have not been sent yet.
struct Pieces {
    head: Option<String>,
    file: Option<fs::File>,
    tail: Option<String>,
}

impl Pieces {
    fn next(&mut self) -> io::Result<Option<Bytes>> {
        if let Some(head) = self.head.take() {
            return Ok(Some(head.into()));
        }
        if let Some(file) = &mut self.file {
            let mut piece = Vec::with_capacity(PIECE_BYTES);
            file.take(PIECE_BYTES as u64).read_to_end(&mut piece)?;
            if !piece.is_empty() {
                return Ok(Some(piece.into()));
            }
            self.file = None;
        }
        Ok(self.tail.take().map(Bytes::from))
    }
}
