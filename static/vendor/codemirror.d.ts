// The vendored editor is untyped.
declare const editor: any;
export = editor;
