/** API objects that this page reads. */

export interface JobProblem {
  code: string;
  field: string;
  line: number | null;
  rows: string;
  message: string;
  fix: string;
}

export interface JobCheck {
  object: "fine_tuning.job.check";
  valid: boolean;
  problems: JobProblem[];
}

export interface FileObject {
  id: string;
  bytes: number;
  created_at: number;
  filename: string;
  purpose: string;
}
