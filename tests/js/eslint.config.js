// Rules that find bugs; Prettier handles layout. `tests/js/run` runs a copy of this file next to the packages in
// target/js.

import js from "@eslint/js";
import globals from "globals";

const rules = {
  "array-callback-return": "error",
  "consistent-return": "error",
  "default-case-last": "error",
  eqeqeq: "error",
  "no-constructor-return": "error",
  "no-eval": "error",
  "no-implied-eval": "error",
  "no-new-func": "error",
  "no-return-assign": "error",
  "no-script-url": "error",
  "no-self-compare": "error",
  "no-template-curly-in-string": "error",
  "no-throw-literal": "error",
  "no-unmodified-loop-condition": "error",
  "no-unreachable-loop": ["error", { ignore: ["ForOfStatement"] }],
  "no-unused-expressions": ["error", { allowShortCircuit: true, allowTernary: true }],
  "no-use-before-define": ["error", { functions: false, variables: false }],
  "no-useless-assignment": "error",
  "no-var": "error",
  "prefer-const": ["error", { destructuring: "all" }],
  "prefer-promise-reject-errors": "error",
  // JSON's grammar mentions control characters.
  "no-control-regex": "off",
  // A leading underscore marks a name that is only a placeholder.
  "no-unused-vars": ["error", { argsIgnorePattern: "^_", varsIgnorePattern: "^_" }],
};

export default [
  { ignores: ["static/vendor/", "target/"] },
  js.configs.recommended,
  { rules, linterOptions: { reportUnusedDisableDirectives: "error" } },
  { files: ["static/**/*.js", "packaging/site/*.js"], languageOptions: { globals: globals.browser } },
  { files: ["tests/**/*.mjs", "tests/**/*.js"], languageOptions: { globals: globals.node } },
];
